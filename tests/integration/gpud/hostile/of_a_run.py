

# Continues `attempts.py`, in the user's code of a run: its parent is the runner.
def connect_to(address: list) -> str:
    with socket.create_connection(tuple(address), 2):
        return "connected"


def udp(port: int) -> int:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as stream:
        return stream.sendto(b"x", ("127.0.0.1", port))


def multipath(_: object) -> str:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM, 262):
        return "made"


def fast_open(port: int) -> int:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as stream:
        return stream.sendto(b"x", socket.MSG_FASTOPEN, ("127.0.0.1", port))


def of_a_run() -> None:
    for one in (connect_to, udp, multipath, fast_open):
        ATTEMPTS[one.__name__] = one
    asked = json.load(sys.stdin)
    private = Path(os.environ["HOME"]).parents[1] / "private"
    shell = os.getppid()
    runner = int(read(f"/proc/{shell}/stat").rpartition(")")[2].split()[1])
    asked["on"] |= {
        "runner": runner,
        "runner_environ": f"/proc/{runner}/environ",
        "private": str(private),
        "credentials": str(private / "credentials.json"),
        "config": str(private / "config"),
        "package": os.environ["LAMBDA_TASK_ROOT"],
    }
    sys.stdout.write(json.dumps(run(asked["what"], asked["on"])))


of_a_run()
