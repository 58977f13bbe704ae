package downrange.driver;

import java.net.InetSocketAddress;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Base64;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.SortedMap;
import java.util.TreeMap;
import org.apache.rocketmq.acl.common.AclUtils;
import org.apache.rocketmq.common.MQVersion;
import org.apache.rocketmq.common.UtilAll;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageClientIDSetter;
import org.apache.rocketmq.common.message.MessageDecoder;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageId;
import org.apache.rocketmq.remoting.CommandCustomHeader;
import org.apache.rocketmq.remoting.protocol.LanguageCode;
import org.apache.rocketmq.remoting.protocol.RemotingCommand;
import org.apache.rocketmq.remoting.protocol.RemotingSerializable;
import org.apache.rocketmq.remoting.protocol.SerializeType;

/** Operations that run Java's own codec classes, so that their bytes can be compared with ours. */
final class Codecs {
    // Packages of headers and bodies in 4.9 and 5; a simple name is searched in all of them.
    private static final String[] PACKAGES = {
        "org.apache.rocketmq.remoting.protocol.", "org.apache.rocketmq.common.protocol.",
        "org.apache.rocketmq.common.", "org.apache.rocketmq.auth.", "org.apache.rocketmq.store.",
    };
    private static final String[] FOLDERS = {
        "", "body.", "route.", "heartbeat.", "admin.", "subscription.", "header.",
        "header.namesrv.", "filter.", "statictopic.", "namesrv.", "message.", "config.",
        "pop.",
    };

    private Codecs() {
    }

    static void register(Map<String, Driver.Op> ops) {
        ops.put("command.encode", Codecs::encodeCommand);
        ops.put("command.decode", Codecs::decodeCommand);
        ops.put("header.roundtrip", Codecs::roundtripHeader);
        ops.put("record.encode", Codecs::encodeRecord);
        ops.put("record.decode", args -> Values.received(MessageDecoder.decode(
            ByteBuffer.wrap(args.hex("hex")), true, args.flag("decompress", true))));
        ops.put("record.decodeAll", args -> Values.plain(
            MessageDecoder.decodes(ByteBuffer.wrap(args.hex("hex")), true)));
        ops.put("batch.encode", args -> {
            List<Message> messages = new ArrayList<>();
            for (Args one : args.objects("messages")) {
                messages.add(Values.message(one));
            }
            return Values.hex(MessageDecoder.encodeMessages(messages));
        });
        ops.put("batch.decode", args -> Values.plain(
            MessageDecoder.decodeMessages(ByteBuffer.wrap(args.hex("hex")))));
        ops.put("properties.encode",
            args -> MessageDecoder.messageProperties2String(args.texts("properties")));
        ops.put("properties.decode",
            args -> new TreeMap<>(MessageDecoder.string2messageProperties(args.text("text"))));
        ops.put("hash", Codecs::hash);
        ops.put("crc32", args -> UtilAll.crc32(args.hex("hex")));
        ops.put("sign", Codecs::sign);
        ops.put("uniqueId", Codecs::uniqueId);
        ops.put("offsetId.encode", args -> MessageDecoder.createMessageId(
            new InetSocketAddress(args.text("host"), args.integer("port")), args.number("offset")));
        ops.put("offsetId.decode", Codecs::decodeOffsetId);
        ops.put("json.roundtrip", Codecs::roundtripJson);
        ops.put("enum", args -> {
            List<Object> names = new ArrayList<>();
            for (Object constant : find(args.text("type")).getEnumConstants()) {
                names.add(((Enum<?>) constant).name());
            }
            return names;
        });
        ops.put("runningState.analyze", Codecs::analyzeRunningState);
        ops.put("registerBody.encode", args -> Values.hex((byte[]) Values.call(
            RemotingSerializable.fromJson(args.text("json"), find("RegisterBrokerBody")), "encode",
            args.flag("compressed", true))));
        ops.put("registerBody.decode", Codecs::decodeRegisterBody);
        ops.put("receipt.encode", args -> find("ExtraInfoUtil").getMethod("buildExtraInfo",
            long.class, long.class, long.class, int.class, String.class, String.class, int.class,
            long.class).invoke(null, args.number("start"), args.number("popTime"),
            args.number("invisibleTime"), args.integer("reviveQueue"), args.text("topic"),
            args.text("broker"), args.integer("queueId"), args.number("offset")));
        ops.put("receipt.decode", Codecs::decodeReceipt);
        ops.put("popOffsets.decode", args -> find("ExtraInfoUtil").getMethod(
            args.text("method"), String.class).invoke(null, args.text("text")));
    }

    /** Finds a class of either release by its simple name. */
    static Class<?> find(String simpleName) throws ClassNotFoundException {
        for (String root : PACKAGES) {
            for (String folder : FOLDERS) {
                try {
                    return Class.forName(root + folder + simpleName);
                } catch (ClassNotFoundException next) {
                    // Try the next package.
                }
            }
        }
        return Class.forName(simpleName);
    }

    private static Object encodeCommand(Args args) throws Exception {
        RemotingCommand command =
            RemotingCommand.createRequestCommand(args.integer("code"), null);
        command.setLanguage(LanguageCode.valueOf(args.text("language", "JAVA")));
        command.setVersion(args.integer("version", 0));
        command.setOpaque(args.integer("opaque", 0));
        command.setFlag(args.integer("flag", 0));
        command.setRemark(args.text("remark", null));
        command.setBody(args.bytes("body"));
        if (args.has("fields")) {
            command.setExtFields(new java.util.HashMap<>(args.texts("fields")));
        }
        command.setSerializeTypeCurrentRPC(SerializeType.valueOf(args.text("serialize", "JSON")));
        ByteBuffer frame = command.encode();
        byte[] bytes = new byte[frame.remaining()];
        frame.get(bytes);
        return Values.hex(bytes);
    }

    private static Object decodeCommand(Args args) throws Exception {
        ByteBuffer frame = ByteBuffer.wrap(args.hex("hex"));
        int length = frame.getInt();
        if (length != frame.remaining()) {
            throw new IllegalArgumentException(
                "length word says " + length + ", there are " + frame.remaining());
        }
        RemotingCommand command = RemotingCommand.decode(frame.slice());
        Map<String, Object> map = new LinkedHashMap<>();
        map.put("code", command.getCode());
        map.put("language", command.getLanguage() == null ? null : command.getLanguage().name());
        map.put("version", command.getVersion());
        map.put("opaque", command.getOpaque());
        map.put("flag", command.getFlag());
        map.put("remark", command.getRemark());
        map.put("fields",
            command.getExtFields() == null ? null : new TreeMap<>(command.getExtFields()));
        map.put("serialize", command.getSerializeTypeCurrentRPC().name());
        byte[] body = command.getBody();
        map.put("body", body == null ? null : Base64.getEncoder().encodeToString(body));
        return map;
    }

    private static Object roundtripHeader(Args args) throws Exception {
        RemotingCommand command = RemotingCommand.createRequestCommand(args.integer("code", 0), null);
        command.setExtFields(new java.util.HashMap<>(args.texts("fields")));
        Class<? extends CommandCustomHeader> type =
            find(args.text("type")).asSubclass(CommandCustomHeader.class);
        CommandCustomHeader header = command.decodeCommandCustomHeader(type);
        RemotingCommand again =
            RemotingCommand.createRequestCommand(args.integer("code", 0), header);
        again.makeCustomHeaderToNet();
        return again.getExtFields() == null ? null : new TreeMap<>(again.getExtFields());
    }

    private static Object encodeRecord(Args args) throws Exception {
        MessageExt message = new MessageExt();
        Values.fill(message, args.object("message"));
        // A record may lack WAIT, which every new message has.
        message.getProperties().remove("WAIT");
        args.object("message").texts("systemProperties").forEach(message.getProperties()::put);
        message.setQueueId(args.integer("queueId", 0));
        message.setQueueOffset(args.number("queueOffset", 0));
        message.setCommitLogOffset(args.number("commitLogOffset", 0));
        message.setSysFlag(args.integer("sysFlag", 0));
        message.setBornTimestamp(args.number("bornTimestamp", 0));
        message.setStoreTimestamp(args.number("storeTimestamp", 0));
        message.setBornHost(address(args.text("bornHost", "127.0.0.1:1")));
        message.setStoreHost(address(args.text("storeHost", "127.0.0.1:10911")));
        message.setReconsumeTimes(args.integer("reconsumeTimes", 0));
        message.setPreparedTransactionOffset(args.number("preparedTransactionOffset", 0));
        message.setBodyCRC(UtilAll.crc32(message.getBody()));
        return Values.hex(MessageDecoder.encode(message, args.flag("compress", false)));
    }

    private static InetSocketAddress address(String text) {
        int colon = text.lastIndexOf(':');
        return new InetSocketAddress(
            text.substring(0, colon), Integer.parseInt(text.substring(colon + 1)));
    }

    private static Object hash(Args args) {
        List<Integer> hashes = new ArrayList<>();
        for (Object text : args.list("texts")) {
            hashes.add(text.toString().hashCode());
        }
        return hashes;
    }

    private static Object sign(Args args) {
        SortedMap<String, String> fields = new TreeMap<>(args.texts("fields"));
        RemotingCommand command = RemotingCommand.createRequestCommand(args.integer("code", 0), null);
        command.setExtFields(new java.util.HashMap<>(fields));
        command.setBody(args.bytes("body"));
        byte[] content = AclUtils.combineRequestContent(command, fields);
        Map<String, Object> map = new LinkedHashMap<>();
        map.put("content", Values.hex(content));
        map.put("signature", AclUtils.calSignature(content, args.text("secretKey")));
        return map;
    }

    private static Object uniqueId(Args args) {
        String id = args.text("id", MessageClientIDSetter.createUniqID());
        Map<String, Object> map = new LinkedHashMap<>();
        map.put("id", id);
        map.put("ip", MessageClientIDSetter.getIPStrFromID(id));
        map.put("pid", MessageClientIDSetter.getPidFromID(id));
        map.put("timeMs", MessageClientIDSetter.getNearlyTimeFromID(id).getTime());
        return map;
    }

    private static Object decodeOffsetId(Args args) throws Exception {
        MessageId id = MessageDecoder.decodeMessageId(args.text("id"));
        InetSocketAddress address = (InetSocketAddress) id.getAddress();
        Map<String, Object> map = new LinkedHashMap<>();
        map.put("host", address.getAddress().getHostAddress());
        map.put("port", address.getPort());
        map.put("offset", id.getOffset());
        return map;
    }

    /** Reads a JSON body into its class and writes it again; also returns the parsed value. */
    private static Object roundtripJson(Args args) throws Exception {
        Class<?> type = find(args.text("type"));
        Object body = RemotingSerializable.decode(
            args.text("json").getBytes(StandardCharsets.UTF_8), type);
        Map<String, Object> map = new LinkedHashMap<>();
        map.put("json", RemotingSerializable.toJson(body, false));
        map.put("value", ((Map<?, ?>) Values.plain(body)).get("value"));
        return map;
    }

    /** Does with the running states of members what `mqadmin consumerStatus` does. */
    private static Object analyzeRunningState(Args args) throws Exception {
        Class<?> type = find("ConsumerRunningInfo");
        TreeMap<String, Object> states = new TreeMap<>();
        for (Map.Entry<String, String> one : args.texts("clients").entrySet()) {
            states.put(one.getKey(), RemotingSerializable.decode(
                one.getValue().getBytes(StandardCharsets.UTF_8), type));
        }
        Map.Entry<String, Object> first = states.firstEntry();
        Map<String, Object> map = new LinkedHashMap<>();
        map.put("text", Values.call(first.getValue(), "formatString"));
        map.put("subscription",
            type.getMethod("analyzeSubscription", TreeMap.class).invoke(null, states));
        map.put("queues", type.getMethod("analyzeProcessQueue", String.class, type)
            .invoke(null, first.getKey(), first.getValue()));
        return map;
    }

    /** Reads a receipt of a popped message, with the class that only 5 has. */
    private static Object decodeReceipt(Args args) throws Exception {
        Class<?> type = find("ExtraInfoUtil");
        Object words = type.getMethod("split", String.class).invoke(null, args.text("text"));
        Map<String, Object> map = new LinkedHashMap<>();
        for (String name : new String[] {"CkQueueOffset", "PopTime", "InvisibleTime", "ReviveQid",
            "BrokerName", "QueueId", "QueueOffset"}) {
            map.put(name, type.getMethod("get" + name, String[].class).invoke(null, words));
        }
        map.put("RealTopic", type.getMethod("getRealTopic", String[].class, String.class,
            String.class).invoke(null, words, args.text("topic"), args.text("group")));
        map.put("isOrder", type.getMethod("isOrder", String[].class).invoke(null, words));
        return map;
    }

    private static Object decodeRegisterBody(Args args) throws Exception {
        byte[] bytes = args.hex("hex");
        boolean compressed = args.flag("compressed", true);
        Class<?> type = find("RegisterBrokerBody");
        Object body;
        try {
            body = type.getMethod("decode", byte[].class, boolean.class).invoke(null, bytes, compressed);
        } catch (NoSuchMethodException inFive) {
            body = type.getMethod("decode", byte[].class, boolean.class, MQVersion.Version.class)
                .invoke(null, bytes, compressed, MQVersion.value2Version(
                    args.integer("version", MQVersion.CURRENT_VERSION)));
        }
        return Values.plain(body);
    }
}
