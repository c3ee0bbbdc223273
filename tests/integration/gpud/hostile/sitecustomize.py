"""For a gpud under test: one more operation, which runs its caller's code.

Found by PYTHONPATH alone; nothing of the product knows of it.
"""

from pathlib import Path

from remote_gpu.worker import operations

operations.__path__.append(str(Path(__file__).with_name("operations")))
