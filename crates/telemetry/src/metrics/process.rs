//! What the system says of this process, under the names that all Prometheus clients use.

use std::{fmt, fs, time::Duration};

use jiff::Timestamp;
use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, NoLabelSet},
    metrics::MetricType,
};
use rustix::time::{ClockId, clock_gettime};

/// The process at one point in time. What the system does not say is left out.
#[derive(Debug)]
pub(super) struct ProcessStats {
    pub(super) started: Timestamp,
}

impl Collector for ProcessStats {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let encoder = &mut encoder;
        let help = "Processor time that the process used, in seconds";
        let mut metric =
            encoder.encode_descriptor("process_cpu_seconds", help, None, MetricType::Counter)?;
        metric.encode_counter::<NoLabelSet, f64, u64>(&cpu_time().as_secs_f64(), None)?;
        let started = self.started.as_duration().as_secs_f64();
        let help = "When the process was started, in seconds since 1970";
        gauge(encoder, "process_start_time_seconds", help, started)?;
        // Both are files of Linux; elsewhere there are none.
        let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
        let limits = fs::read_to_string("/proc/self/limits").unwrap_or_default();
        let kibibytes = |name| number_after(&status, name).map(|number| number * 1024.0);
        let files = fs::read_dir("/proc/self/fd").ok().map(Iterator::count);
        let files = files.and_then(|count| u32::try_from(count).ok()).map(f64::from);
        let known = [
            ("process_resident_memory_bytes", "Memory in use", kibibytes("VmRSS:")),
            ("process_virtual_memory_bytes", "Virtual memory", kibibytes("VmSize:")),
            ("process_threads", "Threads", number_after(&status, "Threads:")),
            ("process_open_fds", "Open file descriptors", files),
            (
                "process_max_fds",
                "Maximum number of open file descriptors",
                number_after(&limits, "Max open files"),
            ),
        ];
        for (name, help, value) in known {
            if let Some(value) = value {
                gauge(encoder, name, help, value)?;
            }
        }
        Ok(())
    }
}

fn gauge(encoder: &mut DescriptorEncoder<'_>, name: &str, help: &str, value: f64) -> fmt::Result {
    encoder.encode_descriptor(name, help, None, MetricType::Gauge)?.encode_gauge(&value)
}

fn cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    let seconds = Duration::from_secs(u64::try_from(time.tv_sec).unwrap_or_default());
    seconds.saturating_add(Duration::from_nanos(u64::try_from(time.tv_nsec).unwrap_or_default()))
}

/// The first number of the line that begins with this.
fn number_after(text: &str, name: &str) -> Option<f64> {
    let rest = text.lines().find_map(|line| line.strip_prefix(name))?;
    rest.split_whitespace().next()?.parse().ok()
}
