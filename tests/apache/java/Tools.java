package downrange.driver;

import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.io.OutputStream;
import java.io.PrintStream;
import java.lang.reflect.Field;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import org.apache.rocketmq.tools.command.MQAdminStartup;

/**
 * Runs mqadmin inside this process: the same commands as the script, without a JVM for each.
 *
 * A command prints to the standard output of the process, so the output is separated by thread.
 * Commands run one after the other, because two that start in the same millisecond share a client. A
 * call without a required argument ends the process, as the script does.
 */
final class Tools {
    private static final ThreadLocal<OutputStream> PRINTED = new ThreadLocal<>();
    private static final Path ACCOUNT =
        Path.of(System.getProperty("rocketmq.home.dir"), "conf", "tools.yml");

    private Tools() {
    }

    static void register(Map<String, Driver.Op> ops) {
        PrintStream split = new PrintStream(new Split(System.err), true, StandardCharsets.UTF_8);
        System.setOut(split);
        System.setErr(split);
        ops.put("mqadmin", Tools::run);
    }

    private static synchronized Object run(Args args) throws Exception {
        List<String> words = new ArrayList<>();
        for (Object word : args.list("arguments")) {
            words.add(word.toString());
        }
        words.add("-n");
        words.add(args.text("nameServers"));
        ByteArrayOutputStream printed = new ByteArrayOutputStream();
        PRINTED.set(printed);
        try {
            forgetCommands();
            sign(args);
            Hurry.run(() -> {
                MQAdminStartup.main0(words.toArray(new String[0]), null);
                return null;
            });
        } finally {
            PRINTED.remove();
            Files.deleteIfExists(ACCOUNT);
        }
        return printed.toString(StandardCharsets.UTF_8);
    }

    /** Makes the tool create its commands again, because some keep a client that is shut down. */
    private static void forgetCommands() throws ReflectiveOperationException {
        for (Field field : MQAdminStartup.class.getDeclaredFields()) {
            if (field.getType() == List.class) {
                field.setAccessible(true);
                ((List<?>) field.get(null)).clear();
            }
        }
    }

    /** Writes the account to the only file where 4.9 looks for it. */
    private static void sign(Args args) throws IOException {
        if (args.has("accessKey")) {
            Files.writeString(ACCOUNT, "accessKey: " + args.text("accessKey")
                + "\nsecretKey: " + args.text("secretKey") + "\n");
        }
    }

    /** Writes to the buffer of the current thread if it has one, else to the original output. */
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
