package downrange.driver;

import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.io.OutputStream;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import org.apache.rocketmq.tools.command.MQAdminStartup;

/**
 * Runs mqadmin inside this process: the same commands as the script, without a JVM for each.
 *
 * A command prints where the whole process prints, so what each thread prints is told apart. A call
 * that lacks an argument which the command demands ends the process, as it does with the script.
 */
final class Tools {
    private static final ThreadLocal<OutputStream> PRINTED = new ThreadLocal<>();

    private Tools() {
    }

    static void register(Map<String, Driver.Op> ops) {
        PrintStream split = new PrintStream(new Split(System.err), true, StandardCharsets.UTF_8);
        System.setOut(split);
        System.setErr(split);
        ops.put("mqadmin", Tools::run);
    }

    private static Object run(Args args) {
        List<String> words = new ArrayList<>();
        for (Object word : args.list("arguments")) {
            words.add(word.toString());
        }
        words.add("-n");
        words.add(args.text("nameServers"));
        ByteArrayOutputStream printed = new ByteArrayOutputStream();
        PRINTED.set(printed);
        try {
            MQAdminStartup.main0(words.toArray(new String[0]), Producers.hook(args));
        } finally {
            PRINTED.remove();
        }
        return printed.toString(StandardCharsets.UTF_8);
    }

    /** Goes to what the current thread collects, or else to where it went before. */
    private static final class Split extends OutputStream {
        private final OutputStream otherwise;

        Split(OutputStream otherwise) {
            this.otherwise = otherwise;
        }

        private OutputStream target() {
            OutputStream collected = PRINTED.get();
            return collected == null ? otherwise : collected;
        }

        @Override
        public void write(int octet) throws IOException {
            target().write(octet);
        }

        @Override
        public void write(byte[] octets, int start, int count) throws IOException {
            target().write(octets, start, count);
        }

        @Override
        public void flush() throws IOException {
            target().flush();
        }
    }
}
