package downrange.driver;

import java.util.ArrayList;
import java.util.Collections;
import java.util.HashSet;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import org.apache.rocketmq.client.consumer.AllocateMessageQueueStrategy;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMachineRoomNearby;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueAveragely;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueAveragelyByCircle;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueByConfig;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueByMachineRoom;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueConsistentHash;
import org.apache.rocketmq.common.message.MessageQueue;

/** Operation that shares queues out among members, with Java's strategies. */
final class Allocations {
    private Allocations() {
    }

    static void register(Map<String, Driver.Op> ops) {
        ops.put("allocate", Allocations::allocate);
    }

    /** For each case: the queues of each member, both sorted as a rebalance does it. */
    private static Object allocate(Args args) {
        AllocateMessageQueueStrategy strategy = strategy(args, args.text("strategy"));
        List<Object> answers = new ArrayList<>();
        for (Args one : args.objects("cases")) {
            List<MessageQueue> queues = new ArrayList<>();
            for (Map.Entry<String, String> broker : one.texts("brokers").entrySet()) {
                for (int number = 0; number < Integer.parseInt(broker.getValue()); number++) {
                    queues.add(new MessageQueue("topic", broker.getKey(), number));
                }
            }
            List<String> members = new ArrayList<>();
            for (Object member : one.list("members")) {
                members.add(member.toString());
            }
            Collections.sort(queues);
            Collections.sort(members);
            List<Object> parts = new ArrayList<>();
            for (String member : members) {
                parts.add(part(strategy, member, queues, members));
            }
            answers.add(parts);
        }
        Map<String, Object> map = new LinkedHashMap<>();
        map.put("name", strategy.getName());
        map.put("answers", answers);
        return map;
    }

    /** The queues of a member, or the word "error". */
    private static Object part(AllocateMessageQueueStrategy strategy, String member,
        List<MessageQueue> queues, List<String> members) {
        List<Object> part = new ArrayList<>();
        try {
            for (MessageQueue queue : strategy.allocate("group", member, queues, members)) {
                part.add(queue.getBrokerName() + " " + queue.getQueueId());
            }
        } catch (IllegalArgumentException refused) {
            return "error";
        }
        return part;
    }

    static AllocateMessageQueueStrategy strategy(Args args, String kind) {
        switch (kind) {
            case "Average":
                return new AllocateMessageQueueAveragely();
            case "AverageByCircle":
                return new AllocateMessageQueueAveragelyByCircle();
            case "ConsistentHash":
                return new AllocateMessageQueueConsistentHash(args.integer("virtualNodes"),
                    args.flag("javaHash", false) ? text -> text.hashCode() : null);
            case "MachineRoom":
                AllocateMessageQueueByMachineRoom rooms = new AllocateMessageQueueByMachineRoom();
                Set<String> names = new HashSet<>();
                args.list("rooms").forEach(room -> names.add(room.toString()));
                rooms.setConsumeridcs(names);
                return rooms;
            case "MachineRoomNearby":
                return new AllocateMachineRoomNearby(strategy(args, args.text("inner")),
                    new RoomsBeforeTheAt());
            case "ByConfig":
                AllocateMessageQueueByConfig config = new AllocateMessageQueueByConfig();
                List<MessageQueue> queues = new ArrayList<>();
                args.objects("queues").forEach(one -> queues.add(Values.queue(one)));
                config.setMessageQueueList(queues);
                return config;
            default:
                throw new IllegalArgumentException("unknown strategy " + kind);
        }
    }

    private static final class RoomsBeforeTheAt
        implements AllocateMachineRoomNearby.MachineRoomResolver {
        @Override
        public String brokerDeployIn(MessageQueue queue) {
            return consumerDeployIn(queue.getBrokerName());
        }

        @Override
        public String consumerDeployIn(String clientId) {
            int at = clientId.indexOf('@');
            return at < 0 ? clientId : clientId.substring(0, at);
        }
    }
}
