package downrange.driver;

import java.beans.Introspector;
import java.lang.reflect.Array;
import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Method;
import java.lang.reflect.Modifier;
import java.net.InetSocketAddress;
import java.net.SocketAddress;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Base64;
import java.util.Collection;
import java.util.HashSet;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import org.apache.rocketmq.client.QueryResult;
import org.apache.rocketmq.client.consumer.PullResult;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.TransactionSendResult;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageAccessor;
import org.apache.rocketmq.common.message.MessageClientExt;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;
import org.apache.rocketmq.remoting.protocol.RemotingSerializable;

/**
 * Java objects to plain JSON values and back.
 *
 * Many classes changed their package between 4.9 and 5, and 5 has methods that 4.9 lacks. Code that
 * compiles with both uses them by name, through `call` and `set`.
 */
final class Values {
    private static final int DEPTH_MAX = 12;

    private Values() {
    }

    static Map<String, Object> error(Throwable thrown) {
        Throwable error = thrown instanceof InvocationTargetException && thrown.getCause() != null
            ? thrown.getCause() : thrown;
        Map<String, Object> map = new LinkedHashMap<>();
        map.put("class", error.getClass().getName());
        map.put("message", error.getMessage());
        try {
            map.put("code", error.getClass().getMethod("getResponseCode").invoke(error));
        } catch (ReflectiveOperationException none) {
            map.put("code", null);
        }
        map.put("cause", error.getCause() == null ? null : error.getCause().toString());
        return map;
    }

    /** Calls a public method by name; arguments are converted to the parameter types. */
    static Object call(Object target, String name, Object... arguments) throws Exception {
        List<String> seen = new ArrayList<>();
        Exception refusal = null;
        for (Method method : target.getClass().getMethods()) {
            if (!method.getName().equals(name)) {
                continue;
            }
            seen.add(method.toString());
            if (method.getParameterCount() != arguments.length) {
                continue;
            }
            Object[] converted = new Object[arguments.length];
            try {
                for (int i = 0; i < arguments.length; i++) {
                    converted[i] = convert(arguments[i], method.getParameterTypes()[i]);
                }
            } catch (IllegalArgumentException | ClassCastException unfit) {
                refusal = unfit;
                continue;
            }
            try {
                return method.invoke(target, converted);
            } catch (InvocationTargetException thrown) {
                if (thrown.getCause() instanceof Exception) {
                    throw (Exception) thrown.getCause();
                }
                throw thrown;
            }
        }
        throw new IllegalArgumentException(target.getClass().getName() + " has no " + name
            + Arrays.toString(arguments) + ", but " + seen, refusal);
    }

    static boolean has(Object target, String name) {
        return Arrays.stream(target.getClass().getMethods()).anyMatch(m -> m.getName().equals(name));
    }

    /** Sets a bean property by its name. */
    static void set(Object target, String property, Object value) throws Exception {
        call(target, "set" + Character.toUpperCase(property.charAt(0)) + property.substring(1), value);
    }

    static void setAll(Object target, Map<String, Object> properties) throws Exception {
        for (Map.Entry<String, Object> entry : properties.entrySet()) {
            set(target, entry.getKey(), entry.getValue());
        }
    }

    @SuppressWarnings({"unchecked", "rawtypes"})
    private static Object convert(Object value, Class<?> type) throws Exception {
        if (value == null) {
            return null;
        }
        String text = value.toString();
        if (type == int.class || type == Integer.class) {
            return Integer.parseInt(text);
        }
        if (type == long.class || type == Long.class) {
            return Long.parseLong(text);
        }
        if (type == double.class || type == Double.class) {
            return Double.parseDouble(text);
        }
        if (type == boolean.class || type == Boolean.class) {
            if (!text.equals("true") && !text.equals("false")) {
                throw new IllegalArgumentException("not a boolean: " + text);
            }
            return Boolean.parseBoolean(text);
        }
        if (type.isInstance(value)) {
            return value;
        }
        if (type.isEnum()) {
            return Enum.valueOf((Class<Enum>) type, text);
        }
        if (type == java.util.Set.class && value instanceof Collection) {
            return new HashSet<>((Collection<?>) value);
        }
        if (value instanceof Map && !type.isInterface() && !type.isPrimitive()) {
            // A bean such as MessageQueue or TopicConfig.
            Object bean = type.getConstructor().newInstance();
            setAll(bean, (Map<String, Object>) value);
            return bean;
        }
        throw new IllegalArgumentException("cannot make " + type.getName() + " of " + text);
    }

    /** Converts any result to a value of standard JSON. */
    static Object plain(Object value) throws Exception {
        if (value == null || value instanceof String || value instanceof Number
            || value instanceof Boolean) {
            return value;
        }
        if (value instanceof byte[]) {
            return Base64.getEncoder().encodeToString((byte[]) value);
        }
        if (value instanceof MessageExt) {
            return received((MessageExt) value);
        }
        if (value instanceof Message) {
            return message((Message) value);
        }
        if (value instanceof MessageQueue) {
            return queue((MessageQueue) value);
        }
        if (value instanceof SendResult) {
            return sent((SendResult) value);
        }
        if (value instanceof PullResult) {
            return pulled((PullResult) value);
        }
        if (value instanceof QueryResult) {
            Map<String, Object> map = new LinkedHashMap<>();
            map.put("indexLastUpdateTimestamp", ((QueryResult) value).getIndexLastUpdateTimestamp());
            map.put("messages", plain(((QueryResult) value).getMessageList()));
            return map;
        }
        if (value instanceof Collection) {
            List<Object> list = new ArrayList<>();
            for (Object item : (Collection<?>) value) {
                list.add(plain(item));
            }
            return list;
        }
        if (value instanceof Map) {
            Map<String, Object> map = new TreeMap<>();
            for (Map.Entry<?, ?> entry : ((Map<?, ?>) value).entrySet()) {
                map.put(key(entry.getKey()), plain(entry.getValue()));
            }
            return map;
        }
        if (value instanceof Enum) {
            return ((Enum<?>) value).name();
        }
        Map<String, Object> map = new LinkedHashMap<>();
        map.put("class", value.getClass().getSimpleName());
        // The text as Java writes it on the wire, and a tree that any JSON parser can read.
        map.put("json", RemotingSerializable.toJson(value, false));
        map.put("value", tree(value, 0));
        return map;
    }

    private static String key(Object key) {
        if (key instanceof MessageQueue) {
            MessageQueue queue = (MessageQueue) key;
            return queue.getTopic() + "/" + queue.getBrokerName() + "/" + queue.getQueueId();
        }
        return String.valueOf(key);
    }

    private static Object tree(Object value, int depth) throws Exception {
        if (value == null || value instanceof String || value instanceof Number
            || value instanceof Boolean) {
            return value;
        }
        if (value instanceof Enum || depth > DEPTH_MAX) {
            return value.toString();
        }
        if (value instanceof Collection) {
            List<Object> list = new ArrayList<>();
            for (Object item : (Collection<?>) value) {
                list.add(tree(item, depth + 1));
            }
            return list;
        }
        if (value.getClass().isArray()) {
            List<Object> list = new ArrayList<>();
            for (int i = 0; i < Array.getLength(value); i++) {
                list.add(tree(Array.get(value, i), depth + 1));
            }
            return list;
        }
        Map<String, Object> map = new TreeMap<>();
        if (value instanceof Map) {
            for (Map.Entry<?, ?> entry : ((Map<?, ?>) value).entrySet()) {
                map.put(key(entry.getKey()), tree(entry.getValue(), depth + 1));
            }
            return map;
        }
        for (Method method : value.getClass().getMethods()) {
            String name = method.getName();
            int prefix = name.startsWith("get") ? 3 : name.startsWith("is") ? 2 : 0;
            if (prefix > 0 && name.length() > prefix && method.getParameterCount() == 0
                && !Modifier.isStatic(method.getModifiers()) && !name.equals("getClass")) {
                try {
                    map.put(Introspector.decapitalize(name.substring(prefix)),
                        tree(method.invoke(value), depth + 1));
                } catch (ReflectiveOperationException unreadable) {
                    map.put(Introspector.decapitalize(name.substring(prefix)), null);
                }
            }
        }
        return map;
    }

    /** Builds a message from its description in a request. */
    static Message message(Args args) throws Exception {
        Message message = new Message();
        fill(message, args);
        return message;
    }

    static void fill(Message message, Args args) throws Exception {
        message.setTopic(args.text("topic", ""));
        message.setBody(args.bytes("body"));
        message.setFlag(args.integer("flag", 0));
        message.setWaitStoreMsgOK(args.flag("waitStoreMsgOK", true));
        if (args.has("tags")) {
            message.setTags(args.text("tags"));
        }
        if (args.has("keys")) {
            message.setKeys(args.text("keys"));
        }
        if (args.has("delayTimeLevel")) {
            message.setDelayTimeLevel(args.integer("delayTimeLevel"));
        }
        for (Map.Entry<String, String> property : args.texts("properties").entrySet()) {
            message.putUserProperty(property.getKey(), property.getValue());
        }
        // Names that the public setter refuses because the system reserves them.
        for (Map.Entry<String, String> property : args.texts("systemProperties").entrySet()) {
            MessageAccessor.putProperty(message, property.getKey(), property.getValue());
        }
        // Other bean properties; 5.x has delayTimeSec, delayTimeMs and deliverTimeMs.
        setAll(message, args.map("options"));
    }

    static MessageQueue queue(Args args) {
        return new MessageQueue(args.text("topic"), args.text("brokerName"), args.integer("queueId"));
    }

    static Map<String, Object> queue(MessageQueue queue) {
        if (queue == null) {
            return null;
        }
        Map<String, Object> map = new LinkedHashMap<>();
        map.put("topic", queue.getTopic());
        map.put("brokerName", queue.getBrokerName());
        map.put("queueId", queue.getQueueId());
        return map;
    }

    static Map<String, Object> message(Message message) {
        Map<String, Object> map = new LinkedHashMap<>();
        map.put("topic", message.getTopic());
        map.put("flag", message.getFlag());
        map.put("tags", message.getTags());
        map.put("keys", message.getKeys());
        byte[] body = message.getBody();
        map.put("body", body == null ? null : Base64.getEncoder().encodeToString(body));
        map.put("transactionId", message.getTransactionId());
        Map<String, String> properties = message.getProperties();
        map.put("properties", new TreeMap<>(properties == null ? Map.of() : properties));
        return map;
    }

    static Map<String, Object> received(MessageExt message) {
        if (message == null) {
            return null;
        }
        Map<String, Object> map = message(message);
        map.put("msgId", message.getMsgId());
        map.put("offsetMsgId", message instanceof MessageClientExt
            ? ((MessageClientExt) message).getOffsetMsgId() : message.getMsgId());
        map.put("brokerName", message.getBrokerName());
        map.put("queueId", message.getQueueId());
        map.put("queueOffset", message.getQueueOffset());
        map.put("commitLogOffset", message.getCommitLogOffset());
        map.put("storeSize", message.getStoreSize());
        map.put("sysFlag", message.getSysFlag());
        map.put("bodyCRC", message.getBodyCRC());
        map.put("bornTimestamp", message.getBornTimestamp());
        map.put("bornHost", address(message.getBornHost()));
        map.put("storeTimestamp", message.getStoreTimestamp());
        map.put("storeHost", address(message.getStoreHost()));
        map.put("reconsumeTimes", message.getReconsumeTimes());
        map.put("preparedTransactionOffset", message.getPreparedTransactionOffset());
        return map;
    }

    static Map<String, Object> sent(SendResult result) throws Exception {
        if (result == null) {
            return null;
        }
        Map<String, Object> map = new LinkedHashMap<>();
        map.put("status", result.getSendStatus().name());
        map.put("msgId", result.getMsgId());
        map.put("offsetMsgId", result.getOffsetMsgId());
        map.put("queue", queue(result.getMessageQueue()));
        map.put("queueOffset", result.getQueueOffset());
        map.put("transactionId", result.getTransactionId());
        map.put("regionId", result.getRegionId());
        map.put("traceOn", result.isTraceOn());
        map.put("recallHandle",
            has(result, "getRecallHandle") ? call(result, "getRecallHandle") : null);
        if (result instanceof TransactionSendResult) {
            var state = ((TransactionSendResult) result).getLocalTransactionState();
            map.put("localTransactionState", state == null ? null : state.name());
        }
        return map;
    }

    static Map<String, Object> pulled(PullResult result) throws Exception {
        Map<String, Object> map = new LinkedHashMap<>();
        map.put("status", result.getPullStatus().name());
        map.put("nextBeginOffset", result.getNextBeginOffset());
        map.put("minOffset", result.getMinOffset());
        map.put("maxOffset", result.getMaxOffset());
        map.put("messages",
            result.getMsgFoundList() == null ? List.of() : plain(result.getMsgFoundList()));
        return map;
    }

    private static String address(SocketAddress address) {
        if (!(address instanceof InetSocketAddress)) {
            return null;
        }
        InetSocketAddress inet = (InetSocketAddress) address;
        return inet.getAddress().getHostAddress() + ":" + inet.getPort();
    }

    static String hex(byte[] bytes) {
        StringBuilder text = new StringBuilder(bytes.length * 2);
        for (byte b : bytes) {
            text.append(Character.forDigit(b >> 4 & 15, 16)).append(Character.forDigit(b & 15, 16));
        }
        return text.toString();
    }

    static byte[] bytes(String hex) {
        byte[] bytes = new byte[hex.length() / 2];
        for (int i = 0; i < bytes.length; i++) {
            bytes[i] = (byte) Integer.parseInt(hex.substring(2 * i, 2 * i + 2), 16);
        }
        return bytes;
    }
}
