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
 * A command prints where the whole process prints, so what its thread prints is told apart. Commands
 * run one after the other, because two that start in the same millisecond share a client. A call that
 * lacks an argument which the command demands ends the process, as it does with the script.
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

    /** Lets the tool make its commands anew, as some keep a client that is shut down. */
    private static void forgetCommands() throws ReflectiveOperationException {
        for (Field field : MQAdminStartup.class.getDeclaredFields()) {
            if (field.getType() == List.class) {
                field.setAccessible(true);
                ((List<?>) field.get(null)).clear();
            }
        }
    }

    /** Names the account in the only place where 4.9 looks for it. */
    private static void sign(Args args) throws IOException {
        if (args.has("accessKey")) {
            Files.writeString(ACCOUNT, "accessKey: " + args.text("accessKey")
                + "\nsecretKey: " + args.text("secretKey") + "\n");
        }
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
