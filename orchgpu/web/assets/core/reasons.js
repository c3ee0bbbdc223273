// The reasons of waits and failures (contract/states.py) in a few words. One of a newer version is
// shown by its name.
import { words } from "./format.js";

const WAITS_FOR = {
  BUSY: "a free device",
  QUEUED_BEHIND: "requests before it",
  AHEAD: "a device that becomes free soon",
  QUOTA: "its tenant's quota",
  HELD_BY_POLICY: "the queue policy",
  OUT_OF_SERVICE: "a device in service",
  SCHEDULER_FULL: "the limit of leases",
  HOST_STARTS: "a host that starts",
  HOST_UNREACHABLE: "a host that answers",
  SCHEDULER_UNREACHABLE: "a scheduler that answers",
  CONCURRENCY: "other jobs of its function",
  RETRY_BACKOFF: "the pause before its next attempt",
};

const MEANS = {
  EXIT_NONZERO: "The script ended with another status than 0.",
  SCRIPT_ERROR: "The script could not be started.",
  TIMEOUT: "The script was stopped before the function's limit.",
  KILLED: "A signal ended the script.",
  OUTPUT_ERROR: "Its outputs could not be stored.",
  INPUT_ERROR: "The function could not read its input.",
  FUNCTION_ERROR: "Lambda reports that the function failed.",
  FUNCTION_TIMEOUT: "Lambda ended the function at its limit.",
  FUNCTION_CRASHED: "The process of the function died.",
  SECRET_ERROR: "A secret of the function cannot be read.",
  SECRET_UNAVAILABLE: "A store of secrets does not answer.",
  NOT_STARTED: "The function did not start in time; the attempt does not count.",
  EVENT_EXPIRED: "Lambda dropped the event that starts the function; the attempt does not count.",
  THROTTLED: "Lambda had no room to run the function; the attempt does not count.",
  START_TIMED_OUT: "The function's own start took longer than Lambda allows.",
  OUT_OF_MEMORY: "The function needed more memory than it has.",
  SESSION_LOST: "The session on the device timed out, or its connection broke.",
  CAP: "The session reached its hard limit.",
  REVOKED: "An operator or a cancel revoked the lease.",
  PREEMPTED: "The lease ended for a request of higher priority; the attempt does not count.",
  WITHDRAWN: "The device that its function waited for did not become free; the attempt does not count.",
  NOT_ON_HOST: "Its host lacks a data set or program; the attempt does not count.",
  HOST_LOST: "The host of the device stopped responding.",
  DATA_ERROR: "A declared data set is gone, or has changed.",
  DEVICE_BAD: "The device failed its health check.",
  RESERVATION_EXPIRED: "Its envelope was not stored in time after the grant.",
  NO_OBJECT: "The function wrote no object during the lease.",
  STAGING_ERROR: "Its envelope could not be stored.",
  REQUEST_REFUSED: "The scheduler rejected the request as not valid.",
  BAD_RESULT: "The object at its result's key is not a result.",
  IMPOSSIBLE: "No known device could ever serve the request.",
  POISON: "Four orchestrators ended while they prepared it, the last one alone with it.",
  BAD_EVENT: "The message is not a supported event.",
  BAD_KEY: "The key of the object is not valid for an input.",
  UNKNOWN_FUNCTION: "No deployed function has this queue.",
  INPUT_DELETED: "The input was deleted before the job began.",
  INPUT_OVERWRITTEN: "A newer object replaced the input.",
  DEADLINE: "The job's own deadline passed.",
};

/** The object of a wait: "its tenant's quota". */
export const waitsFor = (reason) => WAITS_FOR[reason] ?? words(reason);

/** A sentence about a failure; null for one that needs none. */
export const meaningOf = (reason) => MEANS[reason] ?? null;

export const hasReason = (reason) => Boolean(reason) && reason !== "NONE";
