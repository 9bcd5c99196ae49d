import java.io.OutputStream;
import java.nio.file.Files;
import java.nio.file.Path;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.yarn.conf.YarnConfiguration;
import org.apache.hadoop.yarn.server.MiniYARNCluster;

/**
 * A YARN resource manager and two node managers in one JVM, on loopback: {@code java MiniYarn.java
 * FOLDER}. It writes FOLDER/yarn-site.xml, prints "ready", and ends when its standard input does.
 */
class MiniYarn {
    public static void main(String[] arguments) throws Exception {
        Configuration settings = new YarnConfiguration();
        settings.set("yarn.resourcemanager.hostname", "127.0.0.1");
        settings.set("yarn.nodemanager.hostname", "127.0.0.1");
        settings.setBoolean("yarn.nodemanager.pmem-check-enabled", true);
        settings.setBoolean("yarn.nodemanager.vmem-check-enabled", true);
        settings.setInt("yarn.scheduler.minimum-allocation-mb", 256);
        settings.setInt("yarn.nodemanager.resource.memory-mb", 2048);
        settings.set("yarn.nodemanager.disk-health-checker.enable", "false"); // nearly full is enough
        settings.set("yarn.scheduler.capacity.root.queues", "default");
        settings.set("yarn.scheduler.capacity.root.default.capacity", "100");
        settings.set("yarn.scheduler.capacity.maximum-am-resource-percent", "1");
        MiniYARNCluster cluster = new MiniYARNCluster("seatrial", 2, 1, 1);
        cluster.init(settings);
        cluster.start();
        if (!cluster.waitForNodeManagersToConnect(60_000)) {
            throw new IllegalStateException("node managers did not connect within 60 s");
        }
        try (OutputStream file = Files.newOutputStream(Path.of(arguments[0], "yarn-site.xml"))) {
            cluster.getConfig().writeXml(file);
        }
        System.out.println("ready");
        while (System.in.read() >= 0) {}
        cluster.stop();
        System.exit(0);
    }
}
