package downrange.driver;

import java.util.ArrayList;
import java.util.Arrays;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.Callable;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.Semaphore;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicReference;
import org.apache.rocketmq.client.consumer.DefaultMQPullConsumer;
import org.apache.rocketmq.client.consumer.PullResult;
import org.apache.rocketmq.client.consumer.PullStatus;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.LocalTransactionState;
import org.apache.rocketmq.client.producer.SendCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.client.producer.TransactionListener;
import org.apache.rocketmq.client.producer.TransactionSendResult;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

/**
 * Sends or reads as fast as a server answers, for a given time, and counts the messages. On a busy
 * machine the time may be over before the first send, which is done nevertheless.
 *
 * The first send that fails ends the run with its exception, because a rate with failures is not
 * comparable.
 */
final class Loads {
    /** Commits every transaction without recording it. */
    static final TransactionListener COMMITS = new TransactionListener() {
        @Override
        public LocalTransactionState executeLocalTransaction(Message message, Object argument) {
            return LocalTransactionState.COMMIT_MESSAGE;
        }

        @Override
        public LocalTransactionState checkLocalTransaction(MessageExt message) {
            return LocalTransactionState.COMMIT_MESSAGE;
        }
    };

    private static final int LATENCIES_MAX = 1_000_000;
    private static final int PULL_COUNT = 32;

    private final DefaultMQProducer producer;
    private final String topic;
    private final byte[] body;
    private final int threads;
    private final int width;
    private final long end;
    private final Latencies latencies = new Latencies();

    private Loads(Args args, long begun) {
        producer = Driver.started(args.text("name"), DefaultMQProducer.class);
        topic = args.text("topic");
        body = new byte[args.integer("bodyBytes", 1024)];
        Arrays.fill(body, (byte) 'x');
        threads = args.integer("threads", 1);
        width = args.integer("width", 1);
        end = begun + args.number("durationMs") * 1_000_000;
    }

    /**
     * Mode "sync" waits for each message and "transaction" for each transaction, "batch" sends width
     * messages at once and waits, all three in each of the threads; "async" keeps width in flight;
     * "oneway" waits only for the answer to every width-th message, which limits the messages in
     * flight to what a server can accept.
     */
    static Object send(Args args) throws Exception {
        long begun = System.nanoTime();
        Loads load = new Loads(args, begun);
        String mode = args.text("mode");
        long messages;
        switch (mode) {
            case "sync":
                messages = inThreads(load.threads, load::sendEach);
                break;
            case "transaction":
                messages = inThreads(load.threads, load::sendTransactions);
                break;
            case "batch":
                messages = inThreads(load.threads, load::sendBatches);
                break;
            case "async":
                messages = load.sendWindow();
                break;
            case "oneway":
                messages = load.sendOneway();
                break;
            default:
                throw new IllegalArgumentException("no such mode: " + mode);
        }
        return report(messages, System.nanoTime() - begun, load.latencies);
    }

    /** Reads a topic from its first to its last message repeatedly, with one thread per queue. */
    static Object pull(Args args) throws Exception {
        DefaultMQPullConsumer consumer =
            Driver.started(args.text("name"), DefaultMQPullConsumer.class);
        List<MessageQueue> queues =
            new ArrayList<>(consumer.fetchSubscribeMessageQueues(args.text("topic")));
        AtomicInteger next = new AtomicInteger();
        long begun = System.nanoTime();
        long end = begun + args.number("durationMs") * 1_000_000;
        long messages = inThreads(
            queues.size(), () -> pullQueue(consumer, queues.get(next.getAndIncrement()), end));
        return report(messages, System.nanoTime() - begun, new Latencies());
    }

    private static long pullQueue(DefaultMQPullConsumer consumer, MessageQueue queue, long end)
        throws Exception {
        long first = consumer.minOffset(queue);
        long last = consumer.maxOffset(queue);
        long messages = 0;
        for (long offset = first; System.nanoTime() < end && first < last; ) {
            PullResult result = consumer.pull(queue, "*", offset, PULL_COUNT);
            if (result.getPullStatus() != PullStatus.FOUND) {
                throw new IllegalStateException(queue + " at " + offset + ": " + result);
            }
            messages += result.getMsgFoundList().size();
            offset = result.getNextBeginOffset() < last ? result.getNextBeginOffset() : first;
        }
        return messages;
    }

    private long sendEach() throws Exception {
        long messages = 0;
        for (long now = System.nanoTime(); now < end || messages == 0; messages++) {
            expectStored(producer.send(new Message(topic, body)));
            now = latencies.note(now);
        }
        return messages;
    }

    private long sendTransactions() throws Exception {
        long messages = 0;
        for (long now = System.nanoTime(); now < end || messages == 0; messages++) {
            TransactionSendResult result =
                producer.sendMessageInTransaction(new Message(topic, body), null);
            expectStored(result);
            if (result.getLocalTransactionState() != LocalTransactionState.COMMIT_MESSAGE) {
                throw new IllegalStateException(result.toString());
            }
            now = latencies.note(now);
        }
        return messages;
    }

    private long sendBatches() throws Exception {
        long messages = 0;
        for (long now = System.nanoTime(); now < end || messages == 0; messages += width) {
            List<Message> batch = new ArrayList<>(width);
            for (int i = 0; i < width; i++) {
                batch.add(new Message(topic, body));
            }
            expectStored(producer.send(batch));
            now = latencies.note(now);
        }
        return messages;
    }

    private long sendOneway() throws Exception {
        long messages = 0;
        while (System.nanoTime() < end || messages == 0) {
            for (int i = 1; i < width; i++) {
                producer.sendOneway(new Message(topic, body));
            }
            expectStored(producer.send(new Message(topic, body)));
            messages += width;
        }
        return messages;
    }

    private long sendWindow() throws Exception {
        Semaphore free = new Semaphore(width);
        AtomicReference<Throwable> failure = new AtomicReference<>();
        long messages = 0;
        for (; (System.nanoTime() < end || messages == 0) && failure.get() == null; messages++) {
            free.acquire();
            producer.send(new Message(topic, body), new Noted(free, failure, latencies));
        }
        free.acquire(width);
        if (failure.get() != null) {
            throw new IllegalStateException(failure.get());
        }
        return messages;
    }

    /** Runs the same work in several threads and returns the sum; throws the first exception. */
    private static long inThreads(int count, Callable<Long> work) throws Exception {
        if (count == 1) {
            return work.call();
        }
        ExecutorService pool = Executors.newFixedThreadPool(count);
        try {
            List<Callable<Long>> works = new ArrayList<>();
            for (int i = 0; i < count; i++) {
                works.add(work);
            }
            long sum = 0;
            for (Future<Long> done : pool.invokeAll(works)) {
                sum += done.get();
            }
            return sum;
        } catch (ExecutionException error) {
            throw error.getCause() instanceof Exception ? (Exception) error.getCause() : error;
        } finally {
            pool.shutdownNow();
        }
    }

    private static void expectStored(SendResult result) {
        if (result.getSendStatus() != SendStatus.SEND_OK) {
            throw new IllegalStateException(result.toString());
        }
    }

    private static Map<String, Object> report(long messages, long elapsedNs, Latencies latencies) {
        Map<String, Object> report = new LinkedHashMap<>();
        report.put("messages", messages);
        report.put("elapsedNs", elapsedNs);
        report.put("p50Ns", latencies.at(0.5));
        report.put("p99Ns", latencies.at(0.99));
        return report;
    }

    /** Counts an answer, or keeps its error, and frees a place in the window of sends. */
    private static final class Noted implements SendCallback {
        private final Semaphore free;
        private final AtomicReference<Throwable> failure;
        private final Latencies latencies;
        private final long begun = System.nanoTime();

        Noted(Semaphore free, AtomicReference<Throwable> failure, Latencies latencies) {
            this.free = free;
            this.failure = failure;
            this.latencies = latencies;
        }

        @Override
        public void onSuccess(SendResult result) {
            // A message that the client put into a batch may have no result of its own.
            if (result != null && result.getSendStatus() != SendStatus.SEND_OK) {
                failure.set(new IllegalStateException(result.toString()));
            }
            latencies.note(begun);
            free.release();
        }

        @Override
        public void onException(Throwable error) {
            failure.set(error);
            free.release();
        }
    }

    /** The latencies of the first million calls, from any number of threads. */
    private static final class Latencies {
        private final long[] nanos = new long[LATENCIES_MAX];
        private final AtomicInteger noted = new AtomicInteger();

        /** Records a call from its start time until now; returns now. */
        long note(long begun) {
            long now = System.nanoTime();
            int index = noted.getAndIncrement();
            if (index < LATENCIES_MAX) {
                nanos[index] = now - begun;
            }
            return now;
        }

        /** The latency that this part of all calls did not exceed; null when none was recorded. */
        Long at(double part) {
            int count = Math.min(noted.get(), LATENCIES_MAX);
            if (count == 0) {
                return null;
            }
            Arrays.sort(nanos, 0, count);
            return nanos[(int) (count * part)];
        }
    }
}
