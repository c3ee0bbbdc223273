"""Runs: functions whose runner runs on this host, beside the device of its lease.

runs       the runs of all leases: orders, ends, the caches of packages
run        one run: its process, from start to its certain end
in_batch   the same as the container's command in AWS Batch, without gpud
in_service a container of Knative or OpenFaaS: takes events, and starts `in_batch` for each
launch     the program of that process: isolates itself, gets the package, becomes the runner
package    a function's package, fetched and unpacked for one tenant
private    the files of a runner alone: credentials
output     its output: the end for errors, and all of it for CloudWatch Logs
"""
