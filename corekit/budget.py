"""All timings of the system in one frozen value, with the inequalities that must hold between them.

`Budget()` is production; `Budget().scaled(1/20)` is what tests run. `check()` is called at start-up
by every daemon: a configuration that breaks inequalities is refused with a message that names them.
Sources of the AWS limits: SQS ChangeMessageVisibility (12 h cap), Lambda quotas (900 s function
timeout), Lambda asynchronous invocation (event age >= 60 s).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeAlias

from corekit.errors import invalid

#: Seconds of real work: a test's clock may run faster, its machine does not, so they are not scaled.
RealS: TypeAlias = float


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """Every deadline, heartbeat and back-off, in seconds unless the name has another unit."""

    # --- job queue (SQS)
    visibility_s: float = 120.0  #: a received message stays hidden this long without a beat
    visibility_beat_s: float = 30.0  #: the owner extends it this often, from the moment of receipt
    receive_wait_s: float = 20.0  #: SQS long poll, the longest SQS allows
    job_receipt_s_max: float = 39600.0  #: 11 h since receipt: hand back before SQS's 12 h cap
    hand_back_after_s: float = 3600.0  #: a job that waited this long gives its message back
    # --- lease
    reserved_ttl_s: float = 60.0  #: a lease that is not staged ends after this
    reserved_renew_s: float = 15.0  #: its owner renews it this often while it packs
    accept_s: float = 5.0  #: a pushed grant that is not accepted goes to the next request
    #: The same, of an orchestrator that must be woken, and whose process may have to start.
    accept_away_s: RealS = 30.0
    cold_start_s: float = 90.0  #: a function may need this long from event to its first line
    event_age_s: float = 60.0  #: Lambda drops an asynchronous event older than this
    session_beat_s: float = 5.0  #: the runner's application-level beat on its session
    session_silence_s: float = 30.0  #: a session this silent is lost
    install_wait_s: float = 5.0  #: a session for a lease not yet installed waits this long
    # --- scheduler, its clients and hosts
    client_beat_s: float = 3.0  #: an orchestrator session beats this often
    client_gone_s: float = 10.0  #: and is considered gone after this silence
    host_report_s: float = 2.0  #: a monitor reports this often
    host_stale_s: float = 6.0  #: no new leases on a host this silent
    host_lost_s: float = 20.0  #: its leases end as HOST_LOST after this
    device_clean_s: float = 6.0  #: a device that was BAD must be found clean this long
    #: A stopping host waits this long for its leases; a spot interruption leaves as much.
    host_drain_s: float = 120.0
    instance_metadata_poll_s: float = 5.0  #: AWS recommends to look this often for an interruption
    host_reconcile_s: float = 10.0  #: full state exchange with each host
    record_forget_s: float = 3600.0  #: a finished job record is kept this long
    room_poll_s: float = 1.0  #: waiting clients learn this soon that the journal's disk is full
    keys_poll_s: float = 2.0  #: files of keys and certificates are checked this often
    stored_keys_poll_s: float = 60.0  #: keys in a secret store: each look is a call with a price
    spawner_restart_s: float = 1.0  #: between starts of a spawner of workers that died
    log_call_s: RealS = 5.0  #: one call to the log that holds the scheduler's journal
    log_retry_s: RealS = 30.0  #: ssgmd ends when its log fails this long
    # --- real work of the machine: limits that only a fault reaches
    handshake_s: RealS = 5.0  #: a gateway's peer has this long for each message, for slow links
    instance_metadata_answer_s: RealS = 1.0  #: as in the AWS SDKs: it is in the same machine
    probe_answer_s: RealS = 5.0  #: drivers answer in milliseconds; a hung one is detected by this
    card_check_s: RealS = 30.0  #: a card wakes up in some seconds; a check takes one
    worker_ready_s: RealS = 120.0  #: libraries and resident models load from a cold disk
    worker_fork_s: RealS = 10.0  #: a fork takes 3 ms; a machine under load, a second
    worker_take_s: RealS = 10.0  #: a worker takes a lane in 0.1 ms
    #: A killed worker that lives on this long makes its device SUSPECT; a session waits as long.
    worker_cut_s: RealS = 10.0
    worker_slack_s: RealS = 1.0  #: a worker ends itself this long after gpud should have ended it
    #: An Invoke takes 20 to 50 ms; the envelope's event starts a function without an answer by then.
    invoke_s: RealS = 2.0
    program_ready_s: RealS = 60.0  #: a cold start on a slow disk compiles every module once
    program_stop_s: RealS = 2.0  #: a stopped program ends this long after its drain at the latest
    system_stop_s: RealS = 60.0  #: six programs, most of them one after the other
    restart_base_s: float = 0.5  #: before a dead program is started again, doubling up to the next
    restart_s_max: float = 30.0
    restart_window_s: float = 600.0  #: a program with `restarts_max` in this time is given up
    demo_jobs_s: RealS = 180.0  #: of a demo: two cores need a few seconds
    queues_empty_s: RealS = 20.0  #: after the last job its completion events are consumed
    # --- orchestrator
    adopt_every_s: float = 5.0  #: scans for records without a live owner
    #: Before the last packing of a job with `strikes_max`: owners that were only silent return.
    last_packing_pause_s: float = 120.0
    registry_poll_s: float = 2.0  #: scans for newly deployed functions
    reconcile_every_s: float = 900.0  #: uploads without a job are searched for this often
    reconcile_often_s: float = 600.0  #: and every `reconcile_age_s` this long after a deploy
    reconcile_age_s: float = 60.0  #: a younger upload's event may still be on its way
    reconcile_backlog_s: float = 3600.0  #: a search waits this long for an empty job queue
    reconcile_overlap_s: float = 86400.0  #: S3 dates an object by the start of its upload
    reconcile_back_s: float = 1209600.0  #: 14 d, the longest that SQS keeps a message
    metrics_poll_s: float = 30.0  #: queues are measured this often: three calls per function
    emf_every_s: float = 60.0  #: CloudWatch's finest standard resolution
    result_check_s: float = 5.0  #: backup check for a result, doubling up to result_check_s_max
    result_check_s_max: float = 60.0
    failure_grace_s: float = 2.0  #: wait for Lambda's own failure record after a lost session
    visit_stay_s: float = 3.0  #: a visit waits for what is due this soon, else it leaves
    away_s: float = 900.0  #: the message of a job that was left comes again, if nothing else does
    busy_again_s: float = 2.0  #: a notice about a job that another session has comes again
    retry_base_s: float = 5.0  #: back-off between attempts: base * 2^n, full jitter
    retry_s_max: float = 300.0
    input_late_s: float = 900.0  #: a younger upload's 404 may be false (S3's versioning)
    not_started_s_max: float = 3600.0  #: Lambda may be throttled this long before a job fails
    #: After Lambda was throttled no function waits ahead of its device for this long.
    throttled_s: float = 60.0
    drain_s: float = 10.0  #: SIGTERM to exit
    notice_answer_s: RealS = 10.0  #: a webhook answers by then
    notice_pause_s: float = 5.0  #: after a failed notice, growing with its age up to the next
    notice_pause_s_max: float = 900.0
    notice_age_s_max: float = 43200.0  #: 12 h: an older notice is dropped
    reconnect_base_s: float = 0.2  #: first back-off of a lost connection, doubling with jitter
    reconnect_s_max: float = 5.0
    # --- several schedulers over one log, of which one leads
    leader_beat_s: float = 1.0  #: an idle leader appends an empty group this often
    leader_alone_beat_s: float = 2.0  #: while no session and no host is connected to it
    fleet_look_s: float = 2.0  #: a fleet compares demand and hosts this often
    fleet_report_s: float = 30.0  #: its report counts this long: a provider may answer slowly
    standby_poll_s: float = 0.25  #: a standby reads the log this often
    takeover_s: float = 3.0  #: after this silence of the log: three beats, or one slow put
    handover_s: float = 2.0  #: a stopping leader's last put takes no longer
    # --- clients and hosts that know the addresses of several schedulers
    failover_silence_s: float = 3.0  #: a leader this silent is left for the next address
    failover_beat_s: float = 1.0  #: an orchestrator session beats this often
    failover_connect_s: float = 1.0  #: a machine that is gone answers no connection and no hello
    failover_pause_s_max: float = 0.5  #: between two rounds of all addresses
    # --- function
    gateway_dial_s: RealS = 5.0  #: a host without a connection by then is gone
    gateway_answer_s: RealS = 20.0  #: a gateway answers by then, after an install and a revocation
    gateway_door_s: RealS = 130.0  #: a host starts the server of another middleware within this
    # --- counts
    restarts_max: int = 10  #: ten pauses last 150 s: enough for a machine that was overloaded
    #: Jobs without a device that one orchestrator has in hand of one function, unless its
    #: concurrency is limited: a new AWS account runs 1,000 functions at once, some only 10.
    jobs_without_device_max: int = 64
    strikes_max: int = 3  #: orchestrators that ended while packing a job; one more is POISON
    max_receive_count: int = 1000  #: SQS's own limit, as a backstop; the job record decides
    inline_input_bytes_max: int = 8 * 2**20  #: a larger input travels by reference

    @property
    def connect_by_s(self) -> float:
        """From staging to the first session: event age + cold start."""
        return self.event_age_s + self.cold_start_s

    @property
    def granting_again_s(self) -> float:
        """The longest time from a leader's last item to the next grant of its standby, but for work.

        Its last item is read late by a poll, the log is silent, and a client or host reaches the
        new leader after a pause, or after one more address that does not answer.
        """
        found_s = self.failover_pause_s_max + self.failover_connect_s
        return self.standby_poll_s + self.takeover_s + found_s

    def scaled(self, factor: float) -> Budget:
        """The budget with every time but those of real work multiplied by `factor`."""
        times = {
            f.name: getattr(self, f.name) * factor
            for f in dataclasses.fields(self)
            if f.name.endswith(("_s", "_s_max")) and f.type != "RealS"
        }
        return dataclasses.replace(self, **times)

    def check(self) -> Budget:
        """Return self, or raise INVALID naming every inequality that does not hold."""
        broken = [text for text, holds in self._inequalities() if not holds]
        if broken:
            raise invalid("the timing budget breaks its inequalities: " + "; ".join(broken))
        return self

    def _inequalities(self) -> Iterator[tuple[str, bool]]:
        for left, right, parts in _AT_MOST:
            limit = getattr(self, right) / parts
            text = f"{left} <= {right}" if parts == 1 else f"{left} <= {right} / {parts}"
            yield text, getattr(self, left) <= limit * (1 + 1e-9)  # scaling may round an equality
        # a lost leader that wrote a beat ago is tried, but not any more when the standby takes over
        tried_s = self.leader_beat_s + self.standby_poll_s + self.failover_connect_s
        text = "leader_beat_s + standby_poll_s + failover_connect_s <= takeover_s"
        yield text, tried_s <= self.takeover_s * (1 + 1e-9)
        # read late by a poll, and put in the time of two more
        alone_s = self.leader_alone_beat_s + 3 * self.standby_poll_s
        text = "leader_alone_beat_s + 3 * standby_poll_s <= takeover_s"
        yield text, alone_s <= self.takeover_s * (1 + 1e-9)
        positive = all(getattr(self, f.name) > 0 for f in dataclasses.fields(self))
        yield "every time and count is positive", positive


#: (a, b, n): a is at most the n-th part of b.
_AT_MOST = (
    ("visibility_beat_s", "visibility_s", 4),
    ("reserved_renew_s", "reserved_ttl_s", 4),
    ("session_beat_s", "session_silence_s", 4),
    ("client_beat_s", "client_gone_s", 3),
    ("keys_poll_s", "stored_keys_poll_s", 1),
    ("failover_beat_s", "failover_silence_s", 3),
    ("leader_beat_s", "takeover_s", 3),
    ("leader_beat_s", "leader_alone_beat_s", 1),
    ("standby_poll_s", "leader_beat_s", 2),
    ("host_report_s", "failover_silence_s", 1),
    ("failover_silence_s", "client_gone_s", 2),
    ("host_report_s", "host_stale_s", 3),
    ("result_check_s", "result_check_s_max", 1),
    ("log_call_s", "log_retry_s", 3),
    ("reconcile_age_s", "reconcile_every_s", 1),
    ("reconcile_overlap_s", "reconcile_back_s", 1),
    ("reserved_ttl_s", "visibility_s", 1),
    ("host_report_s", "device_clean_s", 2),
    ("host_stale_s", "host_lost_s", 1),
    ("hand_back_after_s", "job_receipt_s_max", 1),
    ("client_gone_s", "last_packing_pause_s", 3),
    ("fleet_look_s", "fleet_report_s", 3),
    ("last_packing_pause_s", "hand_back_after_s", 1),
    ("drain_s", "visibility_s", 1),
    ("handshake_s", "worker_take_s", 1),
    ("worker_take_s", "worker_ready_s", 1),
    ("worker_fork_s", "worker_ready_s", 1),
    ("gateway_dial_s", "gateway_answer_s", 1),
    ("worker_take_s", "gateway_answer_s", 1),
    ("worker_ready_s", "gateway_door_s", 1),
    ("restart_base_s", "restart_s_max", 1),
    ("restart_s_max", "restart_window_s", 1),
    ("worker_slack_s", "worker_cut_s", 1),
)
