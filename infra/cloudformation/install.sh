# Run by a machine of the stack at its first start, in the folder of its packages (orchgpu/infra/bundles.py).
# Amazon Linux gets its own packages from S3 in its region; nothing else is fetched.
set -eu
dnf install --quiet --assumeyes python3.11 amazon-cloudwatch-agent
python3.11 -m venv /opt/orchgpu
/opt/orchgpu/bin/pip install --quiet --no-index --find-links . --requirement requirements.txt
exec /opt/orchgpu/bin/python -m orchgpu.infra.machine /etc/orchgpu/machine.json
