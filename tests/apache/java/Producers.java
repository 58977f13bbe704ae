package downrange.driver;

import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.acl.common.AclClientRPCHook;
import org.apache.rocketmq.acl.common.SessionCredentials;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.LocalTransactionState;
import org.apache.rocketmq.client.producer.SendCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.TransactionListener;
import org.apache.rocketmq.client.producer.TransactionMQProducer;
import org.apache.rocketmq.client.producer.selector.SelectMessageQueueByHash;
import org.apache.rocketmq.client.producer.selector.SelectMessageQueueByRandom;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.remoting.RPCHook;
import org.apache.rocketmq.tools.admin.DefaultMQAdminExt;

/** Operations of producers and of the administration client. */
final class Producers {
    private static final Map<String, Script> SCRIPTS = new ConcurrentHashMap<>();

    private Producers() {
    }

    static void register(Map<String, Driver.Op> ops) {
        ops.put("producer.start", Producers::startProducer);
        ops.put("producer.send", Producers::send);
        ops.put("producer.request", Producers::request);
        ops.put("producer.recall", args -> Values.call(
            producer(args), "recallMessage", args.text("topic"), args.text("recallHandle")));
        ops.put("producer.checks",
            args -> SCRIPTS.get(args.text("name")).checks(args.integer("count", 0),
                args.number("timeoutMs", 0)));
        ops.put("producer.bench", Loads::send);
        ops.put("topic.create", Producers::createTopic);
        ops.put("admin.start", Producers::startAdmin);
    }

    static RPCHook hook(Args args) {
        if (!args.has("accessKey")) {
            return null;
        }
        return new AclClientRPCHook(new SessionCredentials(
            args.text("accessKey"), args.text("secretKey"), args.text("securityToken", null)));
    }

    private static DefaultMQProducer producer(Args args) {
        return Driver.started(args.text("name"), DefaultMQProducer.class);
    }

    private static Object startProducer(Args args) throws Exception {
        String name = args.text("name");
        String group = args.text("group");
        Map<String, Object> options = args.map("options");
        DefaultMQProducer producer;
        if (args.flag("transaction", false)) {
            TransactionMQProducer transactional = new TransactionMQProducer(group, hook(args));
            if (args.flag("commits", false)) {
                transactional.setTransactionListener(Loads.COMMITS);
            } else {
                Script script = new Script();
                SCRIPTS.put(name, script);
                transactional.setTransactionListener(script);
            }
            producer = transactional;
        } else {
            // In 4.9 only the constructor can enable traces; 5 also has a setter.
            boolean trace = "true".equals(String.valueOf(options.remove("enableTrace")));
            Object topic = options.remove("traceTopic");
            producer = new DefaultMQProducer(
                group, hook(args), trace, topic == null ? null : topic.toString());
        }
        producer.setNamesrvAddr(args.text("nameServers"));
        Values.setAll(producer, options);
        Driver.start(name, producer);
        return producer.buildMQClientId();
    }

    private static Object startAdmin(Args args) throws Exception {
        DefaultMQAdminExt admin =
            new DefaultMQAdminExt(hook(args), args.number("timeoutMs", 10_000));
        admin.setNamesrvAddr(args.text("nameServers"));
        // Otherwise two producers in one process would share a client.
        admin.setInstanceName("admin-" + args.text("name"));
        Values.setAll(admin, args.map("options"));
        Driver.start(args.text("name"), admin);
        return admin.buildMQClientId();
    }

    private static Object createTopic(Args args) throws Exception {
        Object client = Driver.started(args.text("name"), Object.class);
        String key = args.text("key", "TBW102");
        String topic = args.text("topic");
        int queues = args.integer("queues", 4);
        boolean hasAttributes = Arrays.stream(client.getClass().getMethods()).anyMatch(method ->
            method.getName().equals("createTopic") && method.getParameterCount() == 5);
        if (hasAttributes) {
            Values.call(client, "createTopic", key, topic, queues, 0, args.texts("attributes"));
        } else {
            Values.call(client, "createTopic", key, topic, queues, 0);
        }
        return null;
    }

    private static Object send(Args args) throws Exception {
        DefaultMQProducer producer = producer(args);
        String mode = args.text("mode", "sync");
        long timeout = args.number("timeoutMs", producer.getSendMsgTimeout());
        List<Args> described = args.objects("messages");
        if (mode.equals("async")) {
            return sendAsync(producer, described, timeout, args.flag("collectErrors", false));
        }
        if (mode.equals("batch")) {
            List<Message> batch = new ArrayList<>();
            for (Args one : described) {
                batch.add(Values.message(one));
            }
            return Collections.singletonList(Values.sent(producer.send(batch, timeout)));
        }
        List<Object> results = new ArrayList<>();
        for (Args one : described) {
            try {
                results.add(Values.sent(sendOne(producer, mode, one, timeout, args)));
            } catch (Exception error) {
                if (!args.flag("collectErrors", false)) {
                    throw error;
                }
                results.add(Collections.singletonMap("error", Values.error(error)));
            }
        }
        return results;
    }

    private static SendResult sendOne(
        DefaultMQProducer producer, String mode, Args one, long timeout, Args args) throws Exception {
        Message message = Values.message(one);
        switch (mode) {
            case "sync":
                // Without a timeout argument, because 5.x ignores autoBatch with one.
                return args.has("timeoutMs") ? producer.send(message, timeout) : producer.send(message);
            case "oneway":
                producer.sendOneway(message);
                return null;
            case "ordered":
                return producer.send(
                    message, new SelectMessageQueueByHash(), one.text("shardingKey"), timeout);
            case "queue":
                return producer.send(message, Values.queue(args.object("queue")), timeout);
            case "transaction":
                return producer.sendMessageInTransaction(message, one);
            default:
                throw new IllegalArgumentException("no such mode: " + mode);
        }
    }

    private static Object sendAsync(DefaultMQProducer producer, List<Args> described, long timeout,
        boolean collectErrors) throws Exception {
        Object[] results = new Object[described.size()];
        CountDownLatch left = new CountDownLatch(results.length);
        for (int i = 0; i < results.length; i++) {
            int index = i;
            SendCallback callback = new SendCallback() {
                @Override
                public void onSuccess(SendResult result) {
                    results[index] = result;
                    left.countDown();
                }

                @Override
                public void onException(Throwable error) {
                    results[index] = error;
                    left.countDown();
                }
            };
            producer.send(Values.message(described.get(i)), callback);
        }
        if (!left.await(timeout + 10_000, TimeUnit.MILLISECONDS)) {
            throw new IllegalStateException(left.getCount() + " callbacks were never called");
        }
        List<Object> answer = new ArrayList<>();
        for (Object result : results) {
            if (!(result instanceof Throwable)) {
                answer.add(Values.sent((SendResult) result));
            } else if (collectErrors) {
                answer.add(Collections.singletonMap("error", Values.error((Throwable) result)));
            } else {
                throw result instanceof Exception
                    ? (Exception) result : new IllegalStateException((Throwable) result);
            }
        }
        return answer;
    }

    private static Object request(Args args) throws Exception {
        // With a selector, because 4.9.4's plain request(message, timeout) is broken: as soon as the
        // request is stored it returns the request itself as the reply.
        Message reply = producer(args).request(Values.message(args.object("message")),
            new SelectMessageQueueByRandom(), "", args.number("timeoutMs", 5_000));
        return Values.plain(reply);
    }

    /**
     * Returns the outcomes that the message's description lists: "local" for the local transaction,
     * "checks" for the checks that follow; the last one is repeated. "THROW" throws an exception.
     */
    private static final class Script implements TransactionListener {
        private final Map<String, List<Object>> outcomes = new ConcurrentHashMap<>();
        private final List<Map<String, Object>> checked = new ArrayList<>();

        @Override
        public LocalTransactionState executeLocalTransaction(Message message, Object argument) {
            Args described = (Args) argument;
            List<Object> checks = described.list("checks");
            outcomes.put(message.getTransactionId(), checks);
            return outcome(described.text("local", "COMMIT_MESSAGE"));
        }

        @Override
        public LocalTransactionState checkLocalTransaction(MessageExt message) {
            List<Object> left = outcomes.getOrDefault(message.getTransactionId(), new ArrayList<>());
            Object next = left.isEmpty() ? "UNKNOW" : left.size() == 1 ? left.get(0) : left.remove(0);
            Map<String, Object> record = new LinkedHashMap<>(Values.received(message));
            record.put("outcome", next);
            record.put("checkedAtMs", System.currentTimeMillis());
            synchronized (checked) {
                checked.add(record);
                checked.notifyAll();
            }
            return outcome(next.toString());
        }

        private static LocalTransactionState outcome(String name) {
            if (name.equals("THROW")) {
                throw new IllegalStateException("scripted");
            }
            return LocalTransactionState.valueOf(name);
        }

        List<Object> checks(int count, long timeoutMs) throws InterruptedException {
            return Consumers.await(checked, count, timeoutMs);
        }
    }
}
