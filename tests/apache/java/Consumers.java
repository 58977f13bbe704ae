package downrange.driver;

import java.lang.reflect.Field;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import org.apache.rocketmq.client.consumer.DefaultLitePullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.MessageSelector;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.listener.MessageListenerOrderly;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueAveragely;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.utils.MessageUtil;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

/** Operations of push, lite pull and plain pull consumers. */
final class Consumers {
    private Consumers() {
    }

    static void register(Map<String, Driver.Op> ops) {
        ops.put("consumer.start", Consumers::startPush);
        ops.put("consumer.received", Consumers::received);
        ops.put("litePull.start", Consumers::startLitePull);
        ops.put("litePull.poll", args -> Values.plain(
            Driver.started(args.text("name"), DefaultLitePullConsumer.class)
                .poll(args.number("timeoutMs", 1_000))));
        ops.put("litePull.seek", Consumers::seek);
        ops.put("pull.start", Consumers::startPull);
        ops.put("pull", Consumers::pull);
        ops.put("pull.bench", Loads::pull);
    }

    /** The client object of a started client. */
    static Object client(Object started) {
        return started instanceof Inbox ? ((Inbox) started).consumer : started;
    }

    /** Waits until a list has a number of entries or time is up; returns a copy of the list. */
    static List<Object> await(List<?> list, int count, long timeoutMs) throws InterruptedException {
        long deadline = System.nanoTime() + timeoutMs * 1_000_000;
        synchronized (list) {
            while (list.size() < count) {
                long left = (deadline - System.nanoTime()) / 1_000_000;
                if (left <= 0) {
                    break;
                }
                list.wait(left);
            }
            return new ArrayList<>(list);
        }
    }

    private static Object startPush(Args args) throws Exception {
        Map<String, Object> options = args.map("options");
        boolean trace = "true".equals(String.valueOf(options.remove("enableTrace")));
        Object traceTopic = options.remove("traceTopic");
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(args.text("group"),
            Producers.hook(args), new AllocateMessageQueueAveragely(), trace,
            traceTopic == null ? null : traceTopic.toString());
        consumer.setNamesrvAddr(args.text("nameServers"));
        Values.setAll(consumer, options);
        if (args.has("strategy")) {
            consumer.setAllocateMessageQueueStrategy(
                Allocations.strategy(args, args.text("strategy")));
        }
        if (args.flag("pop", false)) {
            // The broker shares the queues out, and says whether they are pulled or popped.
            Values.set(consumer, "clientRebalance", false);
        }
        if (args.has("popRetrySeconds")) {
            setPopRetry(consumer, args.integer("popRetrySeconds"));
        }
        for (Map.Entry<String, String> topic : args.texts("subscriptions").entrySet()) {
            if (args.flag("sql", false)) {
                consumer.subscribe(topic.getKey(), MessageSelector.bySql(topic.getValue()));
            } else {
                consumer.subscribe(topic.getKey(), topic.getValue());
            }
        }
        Inbox inbox = new Inbox(consumer, args);
        if (args.flag("orderly", false)) {
            consumer.registerMessageListener((MessageListenerOrderly) (messages, context) ->
                inbox.accept(messages) ? ConsumeOrderlyStatus.SUCCESS
                    : ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT);
        } else {
            int level = args.integer("retryDelayLevel", 0);
            consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
                context.setDelayLevelWhenNextConsume(level);
                return inbox.accept(messages) ? ConsumeConcurrentlyStatus.CONSUME_SUCCESS
                    : ConsumeConcurrentlyStatus.RECONSUME_LATER;
            });
        }
        Driver.start(args.text("name"), inbox);
        return consumer.buildMQClientId();
    }

    /** Sets after how long a refused message is popped again; 5.x has a fixed table, from 10 s on. */
    private static void setPopRetry(DefaultMQPushConsumer consumer, int seconds) throws Exception {
        Object client = consumer.getDefaultMQPushConsumerImpl();
        Field table = client.getClass().getDeclaredField("popDelayLevel");
        table.setAccessible(true);
        Arrays.fill((int[]) table.get(client), seconds);
    }

    private static Object received(Args args) throws Exception {
        Inbox inbox = Driver.started(args.text("name"), Inbox.class);
        List<Object> messages =
            await(inbox.messages, args.integer("count", 0), args.number("timeoutMs", 0));
        if (args.flag("clear", false)) {
            synchronized (inbox.messages) {
                inbox.messages.subList(0, messages.size()).clear();
            }
        }
        return messages;
    }

    private static Object startLitePull(Args args) throws Exception {
        DefaultLitePullConsumer consumer =
            new DefaultLitePullConsumer(args.text("group"), Producers.hook(args));
        consumer.setNamesrvAddr(args.text("nameServers"));
        Values.setAll(consumer, args.map("options"));
        for (Map.Entry<String, String> topic : args.texts("subscriptions").entrySet()) {
            if (args.flag("sql", false)) {
                consumer.subscribe(topic.getKey(), MessageSelector.bySql(topic.getValue()));
            } else {
                consumer.subscribe(topic.getKey(), topic.getValue());
            }
        }
        Driver.start(args.text("name"), consumer);
        if (args.has("queues")) {
            List<MessageQueue> queues = new ArrayList<>();
            for (Args queue : args.objects("queues")) {
                queues.add(Values.queue(queue));
            }
            consumer.assign(queues);
        }
        return consumer.buildMQClientId();
    }

    private static Object seek(Args args) throws Exception {
        Driver.started(args.text("name"), DefaultLitePullConsumer.class)
            .seek(Values.queue(args.object("queue")), args.number("offset"));
        return null;
    }

    private static Object startPull(Args args) throws Exception {
        DefaultMQPullConsumer consumer =
            new DefaultMQPullConsumer(args.text("group"), Producers.hook(args));
        consumer.setNamesrvAddr(args.text("nameServers"));
        Values.setAll(consumer, args.map("options"));
        Driver.start(args.text("name"), consumer);
        return consumer.buildMQClientId();
    }

    private static Object pull(Args args) throws Exception {
        DefaultMQPullConsumer consumer =
            Driver.started(args.text("name"), DefaultMQPullConsumer.class);
        MessageQueue queue = Values.queue(args.object("queue"));
        String expression = args.text("expression", "*");
        long offset = args.number("offset");
        int count = args.integer("count", 32);
        if (args.flag("sql", false)) {
            return Values.plain(
                consumer.pull(queue, MessageSelector.bySql(expression), offset, count));
        }
        return Values.plain(args.flag("block", false)
            ? consumer.pullBlockIfNotFound(queue, expression, offset, count)
            : consumer.pull(queue, expression, offset, count));
    }

    /** The deliveries to a push consumer in order of arrival, including refused ones. */
    private static final class Inbox {
        final DefaultMQPushConsumer consumer;
        final List<Map<String, Object>> messages = new ArrayList<>();
        private final int failures;
        private final long pauseMs;
        private final String replyProducer;

        Inbox(DefaultMQPushConsumer consumer, Args args) {
            this.consumer = consumer;
            this.failures = args.integer("failures", 0);
            this.pauseMs = args.number("pauseMs", 0);
            this.replyProducer = args.text("replyProducer", null);
        }

        /** Records a delivery; false refuses it. A message is refused `failures` times. */
        boolean accept(List<MessageExt> delivered) {
            boolean accepted = true;
            for (MessageExt message : delivered) {
                accepted &= message.getReconsumeTimes() >= failures;
            }
            try {
                if (pauseMs > 0) {
                    Thread.sleep(pauseMs);
                }
                if (accepted && replyProducer != null) {
                    reply(delivered);
                }
            } catch (Exception error) {
                error.printStackTrace();
                accepted = false;
            }
            synchronized (messages) {
                for (MessageExt message : delivered) {
                    Map<String, Object> record = new LinkedHashMap<>(Values.received(message));
                    record.put("accepted", accepted);
                    record.put("receivedAtMs", System.currentTimeMillis());
                    record.put("thread", Thread.currentThread().getName());
                    messages.add(record);
                }
                messages.notifyAll();
            }
            return accepted;
        }

        private void reply(List<MessageExt> delivered) throws Exception {
            DefaultMQProducer producer = Driver.started(replyProducer, DefaultMQProducer.class);
            for (MessageExt message : delivered) {
                byte[] prefix = {'r', 'e', ':'};
                byte[] body = new byte[prefix.length + message.getBody().length];
                System.arraycopy(prefix, 0, body, 0, prefix.length);
                System.arraycopy(message.getBody(), 0, body, prefix.length, message.getBody().length);
                Message reply = MessageUtil.createReplyMessage(message, body);
                producer.send(reply, 30_000);
            }
        }
    }
}
