package downrange.driver;

import java.lang.management.ManagementFactory;
import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.Random;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicLong;
import java.util.concurrent.locks.LockSupport;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/** Consumes with push consumers in their default configuration, and measures rate or latency. */
final class PushLoads {
    private static final long PASS_SECONDS = 60;
    private static final int LATENCIES_MAX = 1_000_000;

    private PushLoads() {
    }

    static void register(Map<String, Driver.Op> ops) {
        ops.put("push.bench", PushLoads::passes);
        ops.put("push.latency", PushLoads::latency);
    }

    /**
     * Reads a filled topic from its first to its last message with a new group, repeatedly; measures
     * from the first to the last call of the listener.
     */
    private static Object passes(Args args) throws Exception {
        long end = System.nanoTime() + args.number("durationMs") * 1_000_000;
        long stored = args.number("stored");
        long messages = 0;
        long elapsed = 0;
        long cpu = 0;
        do {
            Pass pass = new Pass(stored);
            DefaultMQPushConsumer consumer = consumer(args, message -> pass.count());
            try {
                consumer.start();
                if (!pass.isOver.await(PASS_SECONDS, TimeUnit.SECONDS)) {
                    throw new IllegalStateException(pass.left.get() + " messages are missing");
                }
            } finally {
                consumer.shutdown();
            }
            messages += stored;
            elapsed += pass.ended - pass.begun;
            cpu += pass.cpuAfter - pass.cpuBefore;
        } while (System.nanoTime() < end);
        Map<String, Object> report = new LinkedHashMap<>();
        report.put("messages", messages);
        report.put("elapsedNs", elapsed);
        report.put("cpuNs", cpu);
        return report;
    }

    /**
     * Sends messages that contain the time, and measures until the listener begins: one message at a
     * time, or `rate` per second, at intervals of 0.5 to 1.5 times the mean.
     */
    private static Object latency(Args args) throws Exception {
        DefaultMQProducer producer = Driver.started(args.text("name"), DefaultMQProducer.class);
        String topic = args.text("topic");
        int size = args.integer("bodyBytes", 1024);
        int rate = args.integer("rate", 0);
        int queues = args.integer("queues", 4);
        Arrivals arrivals = new Arrivals(System.nanoTime());
        DefaultMQPushConsumer consumer = consumer(args, arrivals::note);
        consumer.start();
        try {
            for (int sent = 0; sent < queues; sent++) { // each queue has shown that it is read
                producer.send(new Message(topic, stamped(size)));
            }
            arrivals.await(queues);
            long begun = System.nanoTime();
            long cpu = cpuNanos();
            long end = begun + args.number("durationMs") * 1_000_000;
            long sent = 0;
            long due = begun;
            Random random = new Random(1);
            for (long now = begun; now < end; now = System.nanoTime()) {
                producer.send(new Message(topic, stamped(size)));
                sent++;
                if (rate == 0) {
                    arrivals.await(queues + sent);
                } else {
                    due += (long) ((0.5 + random.nextDouble()) * 1_000_000_000L / rate);
                    sleepUntil(due);
                }
            }
            arrivals.await(queues + sent);
            Map<String, Object> report = new LinkedHashMap<>();
            report.put("messages", sent);
            report.put("messagesBefore", queues);
            report.put("elapsedNs", System.nanoTime() - begun);
            report.put("cpuNs", cpuNanos() - cpu);
            arrivals.report(queues, report);
            return report;
        } finally {
            consumer.shutdown();
        }
    }

    /** Sleeps to the microsecond: `TimeUnit.sleep` rounds up to a millisecond. */
    private static void sleepUntil(long due) {
        for (long left = due - System.nanoTime(); left > 0; left = due - System.nanoTime()) {
            LockSupport.parkNanos(left);
        }
    }

    private interface Sink {
        void accept(MessageExt message);
    }

    private static DefaultMQPushConsumer consumer(Args args, Sink sink) throws Exception {
        DefaultMQPushConsumer consumer =
            new DefaultMQPushConsumer("bench-push-java-" + System.nanoTime());
        consumer.setNamesrvAddr(args.text("nameServers"));
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe(args.text("topic"), "*");
        int size = args.integer("bodyBytes", 1024);
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            for (MessageExt message : messages) {
                if (message.getBody().length != size) {
                    throw new IllegalStateException(message.toString());
                }
                sink.accept(message);
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        return consumer;
    }

    private static byte[] stamped(int size) {
        byte[] body = new byte[size];
        Arrays.fill(body, (byte) ' ');
        byte[] now = Long.toString(System.nanoTime()).getBytes(StandardCharsets.US_ASCII);
        System.arraycopy(now, 0, body, size - now.length, now.length);
        return body;
    }

    private static long cpuNanos() {
        return ((com.sun.management.OperatingSystemMXBean)
            ManagementFactory.getOperatingSystemMXBean()).getProcessCpuTime();
    }

    /** One pass over a topic. */
    private static final class Pass {
        final CountDownLatch isOver = new CountDownLatch(1);
        final AtomicLong left;
        private final long stored;
        volatile long begun;
        volatile long ended;
        volatile long cpuBefore;
        volatile long cpuAfter;

        Pass(long stored) {
            this.stored = stored;
            left = new AtomicLong(stored);
        }

        void count() {
            long now = left.decrementAndGet();
            if (now == stored - 1) {
                begun = System.nanoTime();
                cpuBefore = cpuNanos();
            }
            if (now == 0) {
                ended = System.nanoTime();
                cpuAfter = cpuNanos();
                isOver.countDown();
            }
        }
    }

    /** Latencies of messages that were sent after a time; older ones do not count. */
    private static final class Arrivals {
        private final long since;
        private final long[] nanos = new long[LATENCIES_MAX];
        private int count;

        Arrivals(long since) {
            this.since = since;
        }

        synchronized void note(MessageExt message) {
            long now = System.nanoTime();
            long sent =
                Long.parseLong(new String(message.getBody(), StandardCharsets.US_ASCII).trim());
            if (sent >= since) {
                nanos[count++] = now - sent;
                notifyAll();
            }
        }

        synchronized void await(long expected) throws InterruptedException {
            long end = System.nanoTime() + PASS_SECONDS * 1_000_000_000L;
            while (count < expected) {
                if (System.nanoTime() > end) {
                    throw new IllegalStateException(count + " of " + expected + " arrived");
                }
                wait(1_000);
            }
        }

        synchronized void report(int from, Map<String, Object> report) {
            Arrays.sort(nanos, from, count);
            report.put("p50Ns", nanos[from + (int) ((count - from) * 0.5)]);
            report.put("p99Ns", nanos[from + (int) ((count - from) * 0.99)]);
        }
    }
}
