package downrange.driver;

import java.util.ArrayList;
import java.util.Arrays;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.Semaphore;
import java.util.concurrent.atomic.AtomicReference;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.common.message.Message;

/**
 * Sends as fast as a server answers, for a given time, and counts what the server acknowledged.
 *
 * The first send that fails ends the run with its exception: a rate with failures means nothing.
 */
final class Loads {
    private static final int LATENCIES_MAX = 1_000_000;

    private final DefaultMQProducer producer;
    private final String topic;
    private final byte[] body;
    private final int width;
    private final long[] latenciesNs = new long[LATENCIES_MAX];
    private int calls;

    private Loads(Args args) {
        producer = Driver.started(args.text("name"), DefaultMQProducer.class);
        topic = args.text("topic");
        body = new byte[args.integer("bodyBytes", 1024)];
        Arrays.fill(body, (byte) 'x');
        width = args.integer("width", 1);
    }

    /** Mode "sync" waits for each message, "async" keeps width in flight, "batch" sends width at once. */
    static Object run(Args args) throws Exception {
        Loads load = new Loads(args);
        String mode = args.text("mode");
        long begun = System.nanoTime();
        long end = begun + args.number("durationMs") * 1_000_000;
        long messages;
        switch (mode) {
            case "sync":
                messages = load.sendEach(end);
                break;
            case "async":
                messages = load.sendWindow(end);
                break;
            case "batch":
                messages = load.sendBatches(end);
                break;
            default:
                throw new IllegalArgumentException("no such mode: " + mode);
        }
        return load.report(messages, System.nanoTime() - begun);
    }

    private long sendEach(long end) throws Exception {
        long messages = 0;
        for (long now = System.nanoTime(); now < end; messages++) {
            expectStored(producer.send(new Message(topic, body)));
            now = note(now);
        }
        return messages;
    }

    private long sendBatches(long end) throws Exception {
        long messages = 0;
        for (long now = System.nanoTime(); now < end; messages += width) {
            List<Message> batch = new ArrayList<>(width);
            for (int i = 0; i < width; i++) {
                batch.add(new Message(topic, body));
            }
            expectStored(producer.send(batch));
            now = note(now);
        }
        return messages;
    }

    private long sendWindow(long end) throws Exception {
        Semaphore free = new Semaphore(width);
        AtomicReference<Throwable> failure = new AtomicReference<>();
        SendCallback callback = new SendCallback() {
            @Override
            public void onSuccess(SendResult result) {
                if (result.getSendStatus() != SendStatus.SEND_OK) {
                    failure.set(new IllegalStateException(result.toString()));
                }
                free.release();
            }

            @Override
            public void onException(Throwable error) {
                failure.set(error);
                free.release();
            }
        };
        long messages = 0;
        for (; System.nanoTime() < end && failure.get() == null; messages++) {
            free.acquire();
            producer.send(new Message(topic, body), callback);
        }
        free.acquire(width);
        if (failure.get() != null) {
            throw new IllegalStateException(failure.get());
        }
        return messages;
    }

    private static void expectStored(SendResult result) {
        if (result.getSendStatus() != SendStatus.SEND_OK) {
            throw new IllegalStateException(result.toString());
        }
    }

    private long note(long begun) {
        long now = System.nanoTime();
        if (calls < LATENCIES_MAX) {
            latenciesNs[calls++] = now - begun;
        }
        return now;
    }

    private Map<String, Object> report(long messages, long elapsedNs) {
        Map<String, Object> report = new LinkedHashMap<>();
        report.put("messages", messages);
        report.put("elapsedNs", elapsedNs);
        Arrays.sort(latenciesNs, 0, calls);
        report.put("p50Ns", calls == 0 ? null : latenciesNs[calls / 2]);
        report.put("p99Ns", calls == 0 ? null : latenciesNs[(int) (calls * 0.99)]);
        return report;
    }
}
