import com.sun.management.OperatingSystemMXBean;
import java.io.IOException;
import java.lang.invoke.MethodHandles;
import java.lang.invoke.VarHandle;
import java.lang.management.ManagementFactory;
import java.nio.ByteOrder;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Locale;
import java.util.Properties;
import org.apache.kafka.clients.consumer.ConsumerConfig;
import org.apache.kafka.clients.producer.ProducerConfig;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.common.utils.Bytes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.StreamsConfig;
import org.apache.kafka.streams.Topology;
import org.apache.kafka.streams.kstream.Consumed;
import org.apache.kafka.streams.kstream.Grouped;
import org.apache.kafka.streams.kstream.Materialized;
import org.apache.kafka.streams.kstream.Produced;
import org.apache.kafka.streams.kstream.Suppressed;
import org.apache.kafka.streams.kstream.Suppressed.BufferConfig;
import org.apache.kafka.streams.kstream.TimeWindows;
import org.apache.kafka.streams.state.Stores;
import org.apache.kafka.streams.state.WindowStore;

/**
 * Sums vectors by window of append time, exactly once; ends when it has summed so many.
 *
 * <p>What it is told is in PEER_* variables, as peer_job.py describes them. The windows are in
 * memory, behind a cache that writes to the changelog only at a commit, which comes once a window's
 * length, as a head's does; a window's sum goes out once, when the window is over. A sum is a plain
 * array of bytes: as an array of integers, encoded for the store, it would take 1.5 times as long.
 */
public final class VectorSum {
    private static final VarHandle COORDINATES =
            MethodHandles.byteArrayViewVarHandle(int[].class, ByteOrder.nativeOrder());
    private static final int LARGEST_MESSAGE = 16 << 20;
    private static final int BATCH_BYTES = 4 << 20;
    private static final long CACHE_BYTES = 64L << 20;

    // Called by the one stream thread there is.
    private final List<byte[]> totals = new ArrayList<>();
    private final long count = number("COUNT");
    private final long warmup = number("WARMUP");
    private final int dimension = (int) number("DIMENSION");
    private final Duration window = Duration.ofMillis(number("WINDOW_MS"));
    private long seen;
    private long startNs;
    private long startCpuNs;

    public static void main(String[] arguments) {
        VectorSum sum = new VectorSum();
        KafkaStreams streams = new KafkaStreams(sum.topology(), sum.settings());
        streams.setUncaughtExceptionHandler(
                error -> {
                    error.printStackTrace();
                    Runtime.getRuntime().halt(1);
                    return null;
                });
        streams.start();
    }

    private static String text(String name) {
        return System.getenv("PEER_" + name);
    }

    private static long number(String name) {
        return Long.parseLong(text(name));
    }

    private Properties settings() {
        // As many at a time as the consumer that only sums takes.
        int batch = Math.max(1, Math.min(2000, BATCH_BYTES / dimension));
        Properties settings = new Properties();
        settings.put(StreamsConfig.APPLICATION_ID_CONFIG, text("GROUP"));
        settings.put(StreamsConfig.BOOTSTRAP_SERVERS_CONFIG, text("SERVERS"));
        settings.put(StreamsConfig.STATE_DIR_CONFIG, text("FOLDER"));
        settings.put(StreamsConfig.PROCESSING_GUARANTEE_CONFIG, StreamsConfig.EXACTLY_ONCE_V2);
        settings.put(StreamsConfig.COMMIT_INTERVAL_MS_CONFIG, window.toMillis());
        settings.put(StreamsConfig.STATESTORE_CACHE_MAX_BYTES_CONFIG, CACHE_BYTES);
        settings.put(StreamsConfig.BUFFERED_RECORDS_PER_PARTITION_CONFIG, batch);
        settings.put(StreamsConfig.TOPOLOGY_OPTIMIZATION_CONFIG, StreamsConfig.OPTIMIZE);
        settings.put(ConsumerConfig.AUTO_OFFSET_RESET_CONFIG, "earliest");
        settings.put(ConsumerConfig.MAX_POLL_RECORDS_CONFIG, batch);
        settings.put(ConsumerConfig.MAX_PARTITION_FETCH_BYTES_CONFIG, 2 * BATCH_BYTES);
        settings.put(ConsumerConfig.FETCH_MAX_WAIT_MS_CONFIG, 50);
        settings.put(ConsumerConfig.RECEIVE_BUFFER_CONFIG, 1 << 20);
        settings.put(ProducerConfig.MAX_REQUEST_SIZE_CONFIG, LARGEST_MESSAGE);
        settings.put(ProducerConfig.TRANSACTION_TIMEOUT_CONFIG, 60_000);
        return settings;
    }

    private Topology topology() {
        StreamsBuilder builder = new StreamsBuilder();
        // Kept for two windows: records come in the order of their append time.
        Materialized<byte[], byte[], WindowStore<Bytes, byte[]>> kept =
                Materialized.<byte[], byte[]>as(
                                Stores.inMemoryWindowStore(
                                        "sums", window.multipliedBy(2), window, false))
                        .withKeySerde(Serdes.ByteArray())
                        .withValueSerde(Serdes.ByteArray())
                        .withCachingEnabled();
        builder.stream(text("TOPIC"), Consumed.with(Serdes.ByteArray(), Serdes.ByteArray()))
                .filter((key, value) -> value != null)
                .groupByKey(Grouped.with(Serdes.ByteArray(), Serdes.ByteArray()))
                .windowedBy(TimeWindows.ofSizeWithNoGrace(window))
                .aggregate(this::begin, (key, value, total) -> add(value, total), kept)
                .suppress(Suppressed.untilWindowCloses(BufferConfig.unbounded()))
                .toStream((windowed, total) -> windowed.key())
                .to(text("OUTPUT"), Produced.with(Serdes.ByteArray(), Serdes.ByteArray()));
        Properties optimized = new Properties();
        optimized.put(StreamsConfig.TOPOLOGY_OPTIMIZATION_CONFIG, StreamsConfig.OPTIMIZE);
        return builder.build(optimized);
    }

    private byte[] begin() {
        totals.add(null);
        return new byte[4 * dimension];
    }

    /** Adds in place: the store copied these bytes out for this one update, and copies them back. */
    private byte[] add(byte[] value, byte[] total) {
        if (seen == warmup) {
            startNs = System.nanoTime();
            startCpuNs = cpuNs();
        }
        int start = value.length - dimension;
        for (int i = 0; i < dimension; i++) {
            COORDINATES.set(total, 4 * i, (int) COORDINATES.get(total, 4 * i) + value[start + i]);
        }
        totals.set(totals.size() - 1, total);
        seen++;
        if (seen == count) {
            finish();
        }
        return total;
    }

    private void finish() {
        double seconds = (System.nanoTime() - startNs) / 1e9;
        double cpuSeconds = (cpuNs() - startCpuNs) / 1e9;
        long sum = 0;
        for (byte[] total : totals) {
            for (int i = 0; i < dimension; i++) {
                sum += (int) COORDINATES.get(total, 4 * i);
            }
        }
        System.out.printf(
                Locale.ROOT,
                "{\"seconds\": %.6f, \"cpu_seconds\": %.6f, \"peak_mib\": %.1f,"
                        + " \"counted\": %d, \"sum\": %d}%n",
                seconds, cpuSeconds, peakMib(), count - warmup, sum);
        System.out.flush();
        Runtime.getRuntime().halt(0);
    }

    private static long cpuNs() {
        return ((OperatingSystemMXBean) ManagementFactory.getOperatingSystemMXBean())
                .getProcessCpuTime();
    }

    private static double peakMib() {
        try {
            for (String line : Files.readAllLines(Path.of("/proc/self/status"))) {
                if (line.startsWith("VmHWM:")) {
                    return Double.parseDouble(line.replaceAll("[^0-9]", "")) / 1024;
                }
            }
        } catch (IOException error) {
            // Not Linux: what the heap may take is the best that is known.
        }
        return Runtime.getRuntime().maxMemory() / (double) (1 << 20);
    }
}
