package downrange.driver;

import static java.util.concurrent.TimeUnit.MILLISECONDS;

import java.util.concurrent.Callable;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.ScheduledExecutorService;

/**
 * Shuts clients down without an unnecessary wait.
 *
 * A client of 5.x has a thread that polls its empty queue with a timeout of three seconds, and the
 * shutdown waits for that thread at its end. This class interrupts that wait.
 */
final class Hurry {
    private static final ScheduledExecutorService WATCH =
        Executors.newSingleThreadScheduledExecutor();

    private Thread working;

    private Hurry(Thread working) {
        this.working = working;
    }

    static <T> T run(Callable<T> work) throws Exception {
        Hurry hurry = new Hurry(Thread.currentThread());
        Future<?> watch = WATCH.scheduleWithFixedDelay(hurry::look, 20, 20, MILLISECONDS);
        try {
            return work.call();
        } finally {
            watch.cancel(false);
            hurry.end();
        }
    }

    private synchronized void look() {
        if (working == null) {
            return;
        }
        for (StackTraceElement frame : working.getStackTrace()) {
            if (frame.getClassName().endsWith(".ServiceThread")
                && frame.getMethodName().equals("shutdown")) {
                working.interrupt();
            }
        }
    }

    /** Ends the interrupts, including one that was requested too late. */
    private synchronized void end() {
        working = null;
        Thread.interrupted();
    }
}
