package downrange.driver;

import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.HashSet;
import java.util.Map;
import java.util.Set;
import org.apache.rocketmq.client.ClientConfig;
import org.apache.rocketmq.client.consumer.store.LocalFileOffsetStore;
import org.apache.rocketmq.client.impl.factory.MQClientInstance;
import org.apache.rocketmq.common.message.MessageQueue;

/** Operation that writes the offsets of a broadcast consumer to a file, as Java keeps them. */
final class Offsets {
    private Offsets() {
    }

    static void register(Map<String, Driver.Op> ops) {
        ops.put("offsets.write", Offsets::write);
    }

    /** Returns the text of the file. */
    private static Object write(Args args) throws Exception {
        String group = args.text("group");
        MQClientInstance client = new MQClientInstance(new ClientConfig(), 0, "writer@" + group);
        LocalFileOffsetStore store = new LocalFileOffsetStore(client, group);
        store.load();
        Set<MessageQueue> queues = new HashSet<>();
        for (Args one : args.objects("offsets")) {
            MessageQueue queue = Values.queue(one);
            queues.add(queue);
            store.updateOffset(queue, one.number("offset"), false);
            store.persistAll(queues);
        }
        Path file = Path.of(LocalFileOffsetStore.LOCAL_OFFSET_STORE_DIR, "writer@" + group, group,
            "offsets.json");
        return Files.readString(file, StandardCharsets.UTF_8);
    }
}
