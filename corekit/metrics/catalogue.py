"""Every metric of every program: the only place that names them.

docs/metrics.md is made from it (`python -m tools.metrics_table`), and tests compare it with what
the running programs expose. A label's bound keeps the number of series known in advance.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from corekit.metrics.metric import Kind, Label, Metric, Section, Unit

_COUNTER, _GAUGE, _HISTOGRAM = Kind.COUNTER, Kind.GAUGE, Kind.HISTOGRAM
_SSGMD, _MONITOR, _GPUD = Section("ssgmd"), Section("monitor"), Section("gpud")
_ORCHESTRATOR, _CONSOLE = Section("orchestrator"), Section("console")

# --- labels
_HOST = Label("host", "registered hosts")
_DEVICE = (
    _HOST,
    Label("device", "devices of the hosts"),
    Label("kind", "`cpu`, `cuda`, `opencl`"),
    Label("model", "models of the devices"),
)
_DCGM = (
    Label("gpu", "indices on one host"),
    Label("UUID", "CUDA devices"),
    Label("device", "indices on one host"),
    Label("modelName", "models of the devices"),
    Label("Hostname", "registered hosts"),
)
_LEASE = (
    Label("lease", "10,000 live leases"),
    Label("tenant", "tenants of them"),
    Label("state", "states of leases"),
    Label("holder", "one per lease"),
    _HOST,
    Label("device", "devices of the hosts"),
)
_KEY = (Label("key", "keys of the scheduler"),)
_FUNCTION = Label("function", "deployed functions")
_OWN_HOST = Label("host", "this host")
_HEALTH = Label("health", "`OK`, `SUSPECT`, `BAD`")

# --- ssgmd
REQUESTS = _SSGMD.metric(
    "ssgmd_requests_total", _COUNTER, "Requests by op", (Label("op", "ops of the protocol"),)
)
ERRORS = _SSGMD.metric(
    "ssgmd_errors_total", _COUNTER, "Errors by code", (Label("code", "9 error codes"),)
)
OUTCOMES = _SSGMD.metric(
    "ssgmd_outcomes_total",
    _COUNTER,
    "Answers to requests for devices",
    (Label("outcome", "4 outcomes"),),
)
LEASE_ENDS = _SSGMD.metric(
    "ssgmd_lease_ends_total",
    _COUNTER,
    "Ended leases by reason",
    (Label("reason", "reasons of the ends of leases"),),
)
LIMITED = _SSGMD.metric(
    "ssgmd_limited_total", _COUNTER, "Requests refused by a limit", (Label("limit", "limits"),)
)
PUSHES = _SSGMD.metric("ssgmd_pushes_total", _COUNTER, "Pushes to sessions and hosts")
CONNECTIONS = _SSGMD.metric("ssgmd_connections", _GAUGE, "Open socket connections")
UNAUTHENTICATED = _SSGMD.metric(
    "ssgmd_unauthenticated_connections", _GAUGE, "Connections before their hello"
)
BUFFERED = _SSGMD.metric(
    "ssgmd_buffered_bytes",
    _GAUGE,
    "Bytes of unfinished lines buffered for socket connections",
    unit=Unit.BYTES,
)
LEASES = _SSGMD.metric(
    "ssgmd_leases", _GAUGE, "Live leases by state", (Label("state", "states of leases"),)
)
HOST_LEASES = _SSGMD.metric(
    "ssgmd_host_leases", _GAUGE, "Live leases with a share on the host", (_HOST,)
)
HOSTS = _SSGMD.metric("ssgmd_hosts", _GAUGE, "Hosts by state", (Label("state", "states of hosts"),))
HOSTS_DRAINING = _SSGMD.metric("ssgmd_hosts_draining", _GAUGE, "Hosts that drain themselves")
HOSTS_FORGOTTEN = _SSGMD.metric(
    "ssgmd_hosts_forgotten_total", _COUNTER, "Ephemeral hosts that were forgotten"
)
WAITING = _SSGMD.metric("ssgmd_waiting_requests", _GAUGE, "Requests in the queue")
DEVICES = _SSGMD.metric("ssgmd_devices", _GAUGE, "Known devices")
MEMORY = _SSGMD.metric(
    "ssgmd_memory_mib", _GAUGE, "Memory that may be allocated", unit=Unit.MEBIBYTES
)
MEMORY_FREE = _SSGMD.metric(
    "ssgmd_memory_free_mib", _GAUGE, "Memory not allocated", unit=Unit.MEBIBYTES
)
RECORDS = _SSGMD.metric(
    "ssgmd_records",
    _GAUGE,
    "Job records of live and of ended jobs",
    (Label("state", "`live`, `ended`"),),
)
KEY_WAITING = _SSGMD.metric(
    "ssgmd_key_waiting_requests", _GAUGE, "Requests in the queue by key", _KEY
)
KEY_RECORDS = _SSGMD.metric(
    "ssgmd_key_records", _GAUGE, "Job records by the key that made them", _KEY
)
WORKLOAD_STARTS = _SSGMD.metric(
    "ssgmd_workload_starts_total",
    _COUNTER,
    "Starts without loading (warm) and with it (cold), of workloads that load",
    (
        Label("tenant", "tenants of the workloads"),
        Label("workload", "100, those with the most starts"),
        Label("start", "`cold`, `warm`"),
    ),
)
EVICTIONS = _SSGMD.metric("ssgmd_evictions_total", _COUNTER, "Evicted warm workers")
EVICTED = _SSGMD.metric(
    "ssgmd_evicted_mib_total",
    _COUNTER,
    "Device memory of evicted warm workers",
    unit=Unit.MEBIBYTES,
)
LOADED = _SSGMD.metric(
    "ssgmd_loaded_mib_total",
    _COUNTER,
    "Models that the workers of ended leases loaded",
    unit=Unit.MEBIBYTES,
)
LEADER = _SSGMD.metric("ssgmd_leader", _GAUGE, "1: it grants; 0: a standby")
EPOCH = _SSGMD.metric("ssgmd_epoch", _GAUGE, "Epoch; rises at each start")
JOURNAL_ENGINE = _SSGMD.metric(
    "ssgmd_journal_engine",
    _GAUGE,
    "Engine of the journal, as a label",
    (Label("engine", "that of this scheduler"),),
)
JOURNAL_BYTES = _SSGMD.metric("ssgmd_journal_bytes", _GAUGE, "Size of the journal", unit=Unit.BYTES)
JOURNAL_HAS_ROOM = _SSGMD.metric(
    "ssgmd_journal_has_room", _GAUGE, "0: it cannot be written, grants are refused"
)
JOURNAL_SYNCS = _SSGMD.metric("ssgmd_journal_syncs_total", _COUNTER, "Groups synced")
JOURNAL_SYNC_TIME = _SSGMD.metric(
    "ssgmd_journal_sync_seconds_total", _COUNTER, "Time spent in syncs", unit=Unit.SECONDS
)
JOURNAL_ENTRIES = _SSGMD.metric("ssgmd_journal_entries_total", _COUNTER, "Entries written")
JOURNAL_RETRIES = _SSGMD.metric(
    "ssgmd_journal_retries_total", _COUNTER, "Writes to a log that were repeated"
)
JOURNAL_WRITTEN = _SSGMD.metric(
    "ssgmd_journal_written_bytes_total", _COUNTER, "Bytes written", unit=Unit.BYTES
)
JOURNAL_COMPACTIONS = _SSGMD.metric("ssgmd_journal_compactions_total", _COUNTER, "Snapshots taken")
DEVICE_MEMORY = _SSGMD.metric(
    "ssgmd_device_memory_mib",
    _GAUGE,
    "Memory of the device that may be allocated",
    _DEVICE,
    Unit.MEBIBYTES,
)
DEVICE_MEMORY_FREE = _SSGMD.metric(
    "ssgmd_device_memory_free_mib",
    _GAUGE,
    "Memory of the device not allocated",
    _DEVICE,
    Unit.MEBIBYTES,
)
DEVICE_LEASES = _SSGMD.metric("ssgmd_device_leases", _GAUGE, "Live leases on the device", _DEVICE)
DEVICE_RESIDENTS = _SSGMD.metric(
    "ssgmd_device_residents", _GAUGE, "Warm workers on the device without a lease", _DEVICE
)
DEVICE_RESIDENT_MEMORY = _SSGMD.metric(
    "ssgmd_device_resident_mib",
    _GAUGE,
    "Memory of the device that evicting its warm workers would free",
    _DEVICE,
    Unit.MEBIBYTES,
)
DEVICE_HEALTH = _SSGMD.metric(
    "ssgmd_device_health", _GAUGE, "1 for the current health of the device", (*_DEVICE, _HEALTH)
)
LEASE_MEMORY = _SSGMD.metric(
    "ssgmd_lease_memory_mib", _GAUGE, "Memory allocated to the lease", _LEASE, Unit.MEBIBYTES
)
LEASE_GUARANTEE = _SSGMD.metric(
    "ssgmd_lease_compute_guarantee_pct",
    _GAUGE,
    "Compute guaranteed to the lease",
    _LEASE,
    Unit.PERCENT,
)
LEASE_LIMIT = _SSGMD.metric(
    "ssgmd_lease_compute_limit_pct", _GAUGE, "Compute limit of the lease", _LEASE, Unit.PERCENT
)
STANDBY_LAG = _SSGMD.metric(
    "ssgmd_standby_lag_seconds", _GAUGE, "Age of the applied state, at most", unit=Unit.SECONDS
)
STANDBY_ITEM = _SSGMD.metric(
    "ssgmd_standby_log_item", _GAUGE, "Newest item of the log that was read"
)

# --- ssgmd, with the names and labels of NVIDIA's dcgm-exporter
DCGM_UTILISATION = _SSGMD.metric(
    "DCGM_FI_DEV_GPU_UTIL", _GAUGE, "GPU utilization (in %).", _DCGM, Unit.PERCENT
)
DCGM_USED = _SSGMD.metric(
    "DCGM_FI_DEV_FB_USED", _GAUGE, "Framebuffer memory used (in MiB).", _DCGM, Unit.MEBIBYTES
)
DCGM_FREE = _SSGMD.metric(
    "DCGM_FI_DEV_FB_FREE", _GAUGE, "Framebuffer memory free (in MiB).", _DCGM, Unit.MEBIBYTES
)
DCGM_TEMPERATURE = _SSGMD.metric(
    "DCGM_FI_DEV_GPU_TEMP", _GAUGE, "GPU temperature (in C).", _DCGM, Unit.CELSIUS
)
DCGM_POWER = _SSGMD.metric(
    "DCGM_FI_DEV_POWER_USAGE", _GAUGE, "Power draw (in W).", _DCGM, Unit.WATTS
)

# --- the monitor: in gpud and in ssgm-monitor
REGISTERED = _MONITOR.metric(
    "ssgm_monitor_registered", _GAUGE, "1: registered at the scheduler", (_OWN_HOST,)
)
REPORTS = _MONITOR.metric(
    "ssgm_monitor_reports_total",
    _COUNTER,
    "Reports to the scheduler",
    (_OWN_HOST, Label("outcome", "`acknowledged`, `failed`")),
)
REPORT_AGE = _MONITOR.metric(
    "ssgm_monitor_report_age_seconds",
    _GAUGE,
    "Time since the last acknowledged report, or since the start",
    (_OWN_HOST,),
    Unit.SECONDS,
)
MONITOR_DEVICES = _MONITOR.metric(
    "ssgm_monitor_devices", _GAUGE, "Devices that the probe finds", (_OWN_HOST, _HEALTH)
)

# --- gpud
HOST_INSTALLED = _GPUD.metric("gpud_leases", _GAUGE, "Leases installed on this host", (_OWN_HOST,))
HOST_PHASES = _GPUD.metric(
    "gpud_lease_phases",
    _GAUGE,
    "Leases installed on this host by phase",
    (_OWN_HOST, Label("phase", "phases of a lease on its host")),
)
HOST_STUCK = _GPUD.metric(
    "gpud_leases_stuck",
    _GAUGE,
    "Leases with a process that cannot be killed, or with memory that is not freed",
    (_OWN_HOST,),
)
HOST_WARM = _GPUD.metric("gpud_warm_workers", _GAUGE, "Warm workers without a lease", (_OWN_HOST,))
HOST_SESSIONS = _GPUD.metric("gpud_sessions", _GAUGE, "Open sessions", (_OWN_HOST,))
HOST_LEASE_ENDS = _GPUD.metric(
    "gpud_lease_ends_total",
    _COUNTER,
    "Ended leases of this host by reason",
    (_OWN_HOST, Label("reason", "reasons of the ends of leases")),
)
HOST_REFUSALS = _GPUD.metric(
    "gpud_refusals_total",
    _COUNTER,
    "Connections that the gateway refused",
    (_OWN_HOST, Label("code", "9 codes of refusals")),
)
HOST_REFUSED_SECRETS = _GPUD.metric(
    "gpud_refused_secrets_total",
    _COUNTER,
    "Connections whose proof of a lease's secret is wrong",
    (_OWN_HOST,),
)

# --- the orchestrator
ORCHESTRATOR_BACKLOG = _ORCHESTRATOR.metric(
    "orchgpu_backlog_messages",
    _GAUGE,
    "Messages that wait to be received",
    (_FUNCTION, Label("queue", "`jobs`, `completion`, `dead_letters`")),
)
ORCHESTRATOR_OLDEST = _ORCHESTRATOR.metric(
    "orchgpu_oldest_message_age_seconds",
    _GAUGE,
    "Age of the oldest message of a job in hand, since it was sent",
    (_FUNCTION,),
    Unit.SECONDS,
)
ORCHESTRATOR_RECEIVED = _ORCHESTRATOR.metric(
    "orchgpu_messages_received_total", _COUNTER, "Messages of the job queue", (_FUNCTION,)
)
ORCHESTRATOR_JOBS = _ORCHESTRATOR.metric(
    "orchgpu_jobs",
    _GAUGE,
    "Jobs in hand by state",
    (_FUNCTION, Label("state", "states of a job that has not ended")),
)
ORCHESTRATOR_FINISHED = _ORCHESTRATOR.metric(
    "orchgpu_jobs_finished_total",
    _COUNTER,
    "Jobs that this replica finished",
    (_FUNCTION, Label("outcome", "6 terminal states"), Label("reason", "reasons of jobs")),
)
ORCHESTRATOR_ATTEMPTS = _ORCHESTRATOR.metric(
    "orchgpu_attempts_total",
    _COUNTER,
    "Attempts by the answer of the scheduler, or by the reason of their failure",
    (_FUNCTION, Label("reason", "`GRANTED`, `WAITING`, and reasons of failed attempts")),
)
ORCHESTRATOR_OWN_TIME = _ORCHESTRATOR.metric(
    "orchgpu_job_own_seconds",
    _HISTOGRAM,
    "Time of its own that the orchestrator spent on a job, without calls to the cloud",
    (_FUNCTION,),
    Unit.SECONDS,
    (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0),
)
ORCHESTRATOR_DEAD_LETTERS = _ORCHESTRATOR.metric(
    "orchgpu_dead_letters_total",
    _COUNTER,
    "Messages that this replica moved to the dead-letter queue",
    (_FUNCTION,),
)
ORCHESTRATOR_REFUSED_SECRETS = _ORCHESTRATOR.metric(
    "orchgpu_refused_secrets_total",
    _COUNTER,
    "Attempts that failed because a gateway refused the secret of their lease",
    (_FUNCTION,),
)
ORCHESTRATOR_CONNECTED = _ORCHESTRATOR.metric(
    "orchgpu_scheduler_connected", _GAUGE, "1: connected to the scheduler"
)

# --- the web console
CONSOLE_SESSIONS = _CONSOLE.metric("orchgpu_console_sessions", _GAUGE, "Open sessions of browsers")
CONSOLE_STREAMS = _CONSOLE.metric("orchgpu_console_streams", _GAUGE, "Open streams of changes")
CONSOLE_BATCHES = _CONSOLE.metric(
    "orchgpu_console_batches_total", _COUNTER, "Batches of changes for all browsers"
)
CONSOLE_REQUESTS = _CONSOLE.metric(
    "orchgpu_console_requests_total",
    _COUNTER,
    "Requests by the status of their answer",
    (Label("status", "about 15 HTTP statuses"),),
)
CONSOLE_CONNECTED = _CONSOLE.metric(
    "orchgpu_console_scheduler_connected", _GAUGE, "1: the picture of the system is current"
)

#: All metrics by program, in the order of this module. The monitor is a part of gpud, and a
#: program of its own.
BY_PROGRAM: Mapping[str, Sequence[Metric]] = {
    section.program: section.metrics
    for section in (_SSGMD, _MONITOR, _GPUD, _ORCHESTRATOR, _CONSOLE)
}
