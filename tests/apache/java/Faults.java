package downrange.driver;

import java.lang.reflect.Constructor;
import java.lang.reflect.Field;
import java.lang.reflect.Method;
import java.lang.reflect.Proxy;
import java.util.ArrayList;
import java.util.Iterator;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Random;
import java.util.TreeMap;
import org.apache.rocketmq.client.ClientConfig;
import org.apache.rocketmq.client.impl.producer.TopicPublishInfo;
import org.apache.rocketmq.client.latency.MQFaultStrategy;
import org.apache.rocketmq.client.producer.selector.SelectMessageQueueByHash;
import org.apache.rocketmq.common.message.MessageQueue;
import org.apache.rocketmq.remoting.protocol.RemotingSerializable;

/**
 * Operations that run Java's choice of a queue: fault tolerance and the hash selector.
 *
 * Java reads the system clock and a Random. Here, time passes by moving every stored timestamp back,
 * and the Random returns the numbers that the test has given.
 */
final class Faults {
    private Faults() {
    }

    static void register(Map<String, Driver.Op> ops) {
        ops.put("fault.durations", Faults::durations);
        ops.put("fault.story", args -> new Story(args).tell());
        ops.put("select.byHash", Faults::selectByHash);
    }

    /** The time for which a broker is avoided, for each of the given latencies. */
    private static Object durations(Args args) throws Exception {
        Method compute =
            MQFaultStrategy.class.getDeclaredMethod("computeNotAvailableDuration", long.class);
        compute.setAccessible(true);
        MQFaultStrategy strategy = new Story(args).strategy;
        List<Object> durations = new ArrayList<>();
        for (Object latency : args.list("latencies")) {
            durations.add(compute.invoke(strategy, Long.parseLong(latency.toString())));
        }
        return durations;
    }

    /** The number of the queue that each text, int or long is hashed to. */
    private static Object selectByHash(Args args) {
        List<MessageQueue> queues = new ArrayList<>();
        for (int number = 0; number < args.integer("queueCount"); number++) {
            queues.add(new MessageQueue("topic", "broker", number));
        }
        SelectMessageQueueByHash selector = new SelectMessageQueueByHash();
        List<Object> chosen = new ArrayList<>();
        for (Object value : args.list("values")) {
            Object argument = value;
            if (!args.text("type").equals("text")) {
                long number = Long.parseLong(value.toString());
                argument = args.text("type").equals("int") ? (Object) (int) number : number;
            }
            chosen.add(selector.select(queues, null, argument).getQueueId());
        }
        return chosen;
    }

    private static Object field(Object owner, String name) throws Exception {
        Field field = owner.getClass().getDeclaredField(name);
        field.setAccessible(true);
        return field.get(owner);
    }

    private static void setField(Object owner, String name, Object value) throws Exception {
        Field field = owner.getClass().getDeclaredField(name);
        field.setAccessible(true);
        field.set(owner, value);
    }

    /** Runs the steps of one request with one strategy and one topic. */
    private static final class Story {
        private final Args args;
        private final boolean isNew;
        private final MQFaultStrategy strategy;
        private final Object tolerance;
        private final List<String> probed = new ArrayList<>();
        private List<Object> up = new ArrayList<>();

        Story(Args args) throws Exception {
            this.args = args;
            Constructor<?>[] makers = MQFaultStrategy.class.getConstructors();
            isNew = makers[0].getParameterCount() > 0;
            strategy = isNew ? makeNew(makers) : (MQFaultStrategy) makers[0].newInstance();
            strategy.setSendLatencyFaultEnable(true);
            tolerance = field(strategy, "latencyFaultTolerance");
        }

        /** 5.x needs an address resolver and a probe; the address is the broker's name here. */
        private MQFaultStrategy makeNew(Constructor<?>[] makers) throws Exception {
            for (Constructor<?> maker : makers) {
                if (maker.getParameterCount() == 3) {
                    return (MQFaultStrategy) maker.newInstance(new ClientConfig(),
                        answer(maker.getParameterTypes()[1]), answer(maker.getParameterTypes()[2]));
                }
            }
            throw new IllegalStateException("no constructor with three parameters");
        }

        private Object answer(Class<?> type) {
            return Proxy.newProxyInstance(type.getClassLoader(), new Class<?>[] {type},
                (proxy, method, given) -> {
                    if (method.getName().equals("resolve")) {
                        return given[0];
                    }
                    probed.add((String) given[0]);
                    return up.contains(given[0]);
                });
        }

        Map<String, Object> tell() throws Exception {
            TopicPublishInfo topic = topic();
            setIndex(topic.getSendWhichQueue(), args.integer("index"));
            setIndex(field(tolerance, "whichItemWorst"), -1);
            Iterator<Object> numbers = args.list("randoms").iterator();
            setField(topic.getSendWhichQueue(), "random", new Random() {
                @Override
                public int nextInt(int limit) {
                    return Integer.parseInt(numbers.next().toString()) % limit;
                }
            });
            long begun = System.nanoTime();
            List<Object> told = new ArrayList<>();
            for (Args step : args.objects("steps")) {
                Map<String, Object> outcome = new LinkedHashMap<>();
                outcome.put("result", act(step, topic));
                outcome.put("available", ask("isAvailable"));
                outcome.put("reachable", isNew ? ask("isReachable") : null);
                told.add(outcome);
            }
            // The real clock advanced, too.
            Map<String, Object> story = new LinkedHashMap<>();
            story.put("told", told);
            story.put("elapsedMs", (System.nanoTime() - begun) / 1_000_000);
            return story;
        }

        private Object act(Args step, TopicPublishInfo topic) throws Exception {
            switch (step.text("do")) {
                case "update":
                    update(step);
                    return null;
                case "pass":
                    pass(step.number("ms"));
                    return null;
                case "pick":
                    // New queues each time, because 4.9 modifies the queues that it picks.
                    topic.setMessageQueueList(queues());
                    return pick(step, topic);
                case "best":
                    return Values.call(tolerance, "pickOneAtLeast");
                case "probe":
                    probed.clear();
                    up = step.list("up");
                    Values.call(tolerance, "detectByOneRound");
                    return new ArrayList<>(probed);
                default:
                    throw new IllegalArgumentException("no such step: " + step.text("do"));
            }
        }

        private void update(Args step) throws Exception {
            boolean isolated = step.flag("isolation", false);
            String broker = step.text("broker");
            long latency = step.number("latencyMs");
            if (isNew) {
                Values.call(strategy, "updateFaultItem", broker, latency, isolated,
                    step.flag("reachable", true));
            } else {
                Values.call(strategy, "updateFaultItem", broker, latency, isolated);
            }
        }

        private Object pick(Args step, TopicPublishInfo topic) throws Exception {
            String last = step.text("last", null);
            MessageQueue queue = (MessageQueue) (isNew
                ? Values.call(strategy, "selectOneMessageQueue", topic, last, last != null)
                : Values.call(strategy, "selectOneMessageQueue", topic, last));
            return queue.getBrokerName() + "/" + queue.getQueueId();
        }

        private void pass(long ms) throws Exception {
            for (Object item : ((Map<?, ?>) field(tolerance, "faultItemTable")).values()) {
                setField(item, "startTimestamp", (long) field(item, "startTimestamp") - ms);
                if (isNew) {
                    setField(item, "checkStamp", (long) field(item, "checkStamp") - ms);
                }
            }
        }

        private Map<String, Object> ask(String question) throws Exception {
            Map<String, Object> answers = new TreeMap<>();
            for (String broker : args.texts("writeCounts").keySet()) {
                answers.put(broker, Values.call(tolerance, question, broker));
            }
            return answers;
        }

        private List<MessageQueue> queues() {
            List<MessageQueue> queues = new ArrayList<>();
            args.texts("writeCounts").forEach((broker, count) -> {
                for (int number = 0; number < Integer.parseInt(count); number++) {
                    queues.add(new MessageQueue("topic", broker, number));
                }
            });
            return queues;
        }

        private TopicPublishInfo topic() throws Exception {
            List<String> served = new ArrayList<>();
            args.texts("writeCounts").forEach((broker, count) -> served.add(
                "{\"brokerName\":\"" + broker + "\",\"writeQueueNums\":" + count + "}"));
            TopicPublishInfo topic = new TopicPublishInfo();
            Values.call(topic, "setTopicRouteData", RemotingSerializable.fromJson(
                "{\"queueDatas\":" + served + "}", Codecs.find("TopicRouteData")));
            return topic;
        }

        @SuppressWarnings("unchecked")
        private static void setIndex(Object turns, int index) throws Exception {
            ((ThreadLocal<Integer>) field(turns, "threadLocalIndex")).set(index);
        }
    }
}
