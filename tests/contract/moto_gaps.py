"""Differences of moto (server mode, 5.2) from AWS, by test, with the reason.

The tests named here are expected to fail on moto, strictly: one that begins to pass is a gap that
moto closed, and leaves this table. Those of `NOT_ASKED` do not run.
"""

from __future__ import annotations

MOTO_GAPS = {
    # S3
    "test_a_record_carries_version_and_sequencer": "records have neither versionId nor sequencer",
    "test_multipart_sends_one_event": "sends Put and CompleteMultipartUpload",
    "test_an_aborted_upload_leaves_nothing": "a part for an aborted upload is a 500",
    "test_a_bucket_that_is_not_empty_stays": "delete markers do not keep a bucket",
    # SQS
    "test_an_older_handle_deletes_nothing": "any handle a message ever had deletes it",
    # Parameter Store and Secrets Manager
    "test_a_selected_version_is_named": "no answer names the selector",
    "test_names_of_parameters_are_checked": "a name with levels needs no / at its beginning",
    "test_values_of_parameters_are_limited": "values of any length are accepted",
    "test_a_type_of_a_parameter_does_not_change": "another type is accepted",
    "test_the_name_of_a_deleted_secret_is_not_free": "refused as ResourceExistsException",
    "test_wrong_calls_for_secrets": "a secret with text and bytes is accepted",
    # Lambda
    "test_unknown_functions_cannot_be_invoked": "an unknown function answers an invocation",
    "test_a_handler_answers": "runs no function without docker; the bridge does that",
    "test_an_error_is_returned": "runs no function without docker",
    "test_logs_are_kept": "runs no function without docker",
    "test_a_timeout_is_returned": "runs no function without docker",
    "test_an_event_goes_to_the_failure_destination": "asynchronous events are dropped",
    "test_an_s3_event_runs_the_function": "S3 events for functions are dropped; see the bridge",
    "test_bad_code_is_refused": "a zip is not opened before its run",
    "test_reserved_variables_are_refused": "reserved names are accepted",
    "test_the_code_can_be_fetched": "the location is an address on real AWS",
    "test_unknown_failure_destinations_are_refused": "destinations are not checked",
    "test_settings_are_kept_changed_and_set_back": "drops LoggingConfig, and changes of /tmp",
    "test_a_mapping_deletes_what_its_function_finished": "runs no function without docker",
    "test_an_architecture_comes_with_code": "architectures are those of the creation",
}

#: Tests that do not run on moto.
NOT_ASKED = {
    "test_a_dropped_poller_takes_no_message": "a poller that left takes the next message, now"
    " and then",
    "test_more_than_a_thousand_objects_take_two_pages": "1,001 puts take it ten seconds",
    "test_every_message_arrives_once_under_concurrency": "its queues have no lock: a message may"
    " come twice, now and then",
    "test_settings_that_aws_refuses_are_refused": "it checks some of them",
    "test_reserved_concurrency_leaves_some_for_others": "its functions do not run",
    "test_a_function_logs_to_the_group_of_its_settings": "its functions do not run",
}
