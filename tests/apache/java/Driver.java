package downrange.driver;

import com.alibaba.fastjson.JSON;
import com.alibaba.fastjson.JSONObject;
import com.alibaba.fastjson.parser.Feature;
import com.alibaba.fastjson.serializer.SerializerFeature;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.TreeMap;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import org.apache.rocketmq.common.MQVersion;

/**
 * Runs operations of the real Java client and its codec classes on behalf of a test.
 *
 * One request per line on standard input, {"id":1,"op":"...","args":{...}}, one answer per line on
 * standard output, {"id":1,"ok":true,"result":...} or {"id":1,"ok":false,"error":{...}}. Requests run
 * concurrently, so answers may come in another order. The program ends when its input ends, and
 * therefore also when its parent ends.
 */
public final class Driver {
    /** One operation. */
    interface Op {
        Object run(Args args) throws Exception;
    }

    /** Everything that a test started, by the name that the test gave it. */
    static final Map<String, Object> STARTED = new ConcurrentHashMap<>();

    private static final Map<String, Op> OPS = new TreeMap<>();
    private static PrintStream answers;

    private Driver() {
    }

    public static void main(String[] arguments) throws Exception {
        answers = new PrintStream(System.out, false, "UTF-8");
        // The output of the client libraries must not mix with the answers.
        System.setOut(System.err);
        OPS.put("version", args -> MQVersion.getVersionDesc(MQVersion.CURRENT_VERSION));
        OPS.put("ops", args -> OPS.keySet());
        OPS.put("call", Driver::call);
        OPS.put("stop", Driver::stop);
        OPS.put("exit", Driver::exit);
        Producers.register(OPS);
        Consumers.register(OPS);
        PushLoads.register(OPS);
        Codecs.register(OPS);
        Faults.register(OPS);
        Allocations.register(OPS);
        Offsets.register(OPS);
        Traces.register(OPS);
        Filters.register(OPS);
        Tools.register(OPS);

        ExecutorService pool = Executors.newCachedThreadPool(work -> {
            Thread thread = new Thread(work, "driver-op");
            thread.setDaemon(true);
            return thread;
        });
        BufferedReader lines =
            new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            // Disable special keys: a property named "$ref" or "@type" is an ordinary property.
            JSONObject request =
                JSON.parseObject(line, Feature.DisableSpecialKeyDetect, Feature.OrderedField);
            pool.execute(() -> serve(request));
        }
        Runtime.getRuntime().halt(0);
    }

    private static void serve(JSONObject request) {
        Map<String, Object> answer = new LinkedHashMap<>();
        answer.put("id", request.get("id"));
        try {
            String name = request.getString("op");
            Op op = OPS.get(name);
            if (op == null) {
                throw new IllegalArgumentException("no such op: " + name + ", known: " + OPS.keySet());
            }
            JSONObject args = request.getJSONObject("args");
            Object result = op.run(new Args(args == null ? new JSONObject() : args));
            answer.put("ok", true);
            answer.put("result", result);
        } catch (Throwable error) {
            error.printStackTrace();
            answer.put("ok", false);
            answer.put("error", Values.error(error));
        }
        String text = JSON.toJSONString(answer, SerializerFeature.DisableCircularReferenceDetect,
            SerializerFeature.WriteMapNullValue, SerializerFeature.BrowserCompatible);
        synchronized (Driver.class) {
            answers.println(text);
            answers.flush();
        }
    }

    static <T> T started(String name, Class<T> type) {
        Object thing = STARTED.get(name);
        if (thing == null) {
            throw new IllegalArgumentException("nothing was started as " + name);
        }
        return type.cast(thing);
    }

    static void start(String name, Object thing) throws Exception {
        if (STARTED.putIfAbsent(name, thing) != null) {
            throw new IllegalArgumentException("already started: " + name);
        }
        try {
            Values.call(Consumers.client(thing), "start");
        } catch (Exception error) {
            STARTED.remove(name);
            throw error;
        }
    }

    /** Calls any public method of a started client, where no operation exists for it. */
    private static Object call(Args args) throws Exception {
        Object target = Consumers.client(started(args.text("name"), Object.class));
        return Values.plain(
            Values.call(target, args.text("method"), args.list("arguments").toArray()));
    }

    private static Object stop(Args args) throws Exception {
        Object thing = STARTED.remove(args.text("name"));
        if (thing != null) {
            Hurry.run(() -> Values.call(Consumers.client(thing), "shutdown"));
        }
        return thing != null;
    }

    private static Object exit(Args args) {
        Runtime.getRuntime().halt(0);
        return null;
    }
}
