package downrange.driver;

import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.Map;
import org.apache.rocketmq.client.consumer.AllocateMessageQueueStrategy;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueAveragely;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueAveragelyByCircle;
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
        AllocateMessageQueueStrategy strategy = args.text("strategy").equals("AVG")
            ? new AllocateMessageQueueAveragely() : new AllocateMessageQueueAveragelyByCircle();
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
                List<Object> part = new ArrayList<>();
                for (MessageQueue queue : strategy.allocate("group", member, queues, members)) {
                    part.add(queue.getBrokerName() + " " + queue.getQueueId());
                }
                parts.add(part);
            }
            answers.add(parts);
        }
        return answers;
    }
}
