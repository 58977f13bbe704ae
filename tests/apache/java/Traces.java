package downrange.driver;

import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.TreeSet;
import org.apache.rocketmq.client.trace.TraceBean;
import org.apache.rocketmq.client.trace.TraceContext;
import org.apache.rocketmq.client.trace.TraceDataEncoder;
import org.apache.rocketmq.client.trace.TraceTransferBean;

/** Operations that run Java's own codec of trace records. */
final class Traces {
    private Traces() {
    }

    static void register(Map<String, Driver.Op> ops) {
        ops.put("trace.encode", Traces::encode);
        ops.put("trace.decode", Traces::decode);
    }

    /** Writes one context; its properties and those of its beans are given by name. */
    private static Object encode(Args args) throws Exception {
        TraceContext context = new TraceContext();
        Values.setAll(context, args.map("context"));
        List<TraceBean> beans = new ArrayList<>();
        for (Object properties : args.list("beans")) {
            TraceBean bean = new TraceBean();
            for (Map.Entry<?, ?> property : ((Map<?, ?>) properties).entrySet()) {
                Values.set(bean, property.getKey().toString(), property.getValue());
            }
            beans.add(bean);
        }
        context.setTraceBeans(beans);
        TraceTransferBean written = TraceDataEncoder.encoderFromContextBean(context);
        Map<String, Object> map = new LinkedHashMap<>();
        map.put("text", written.getTransData());
        map.put("keys", new TreeSet<>(written.getTransKey()));
        return map;
    }

    private static Object decode(Args args) throws Exception {
        List<Object> contexts = new ArrayList<>();
        for (TraceContext context : TraceDataEncoder.decoderFromTraceDataString(args.text("text"))) {
            contexts.add(((Map<?, ?>) Values.plain(context)).get("value"));
        }
        return contexts;
    }
}
