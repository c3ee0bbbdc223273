"""The recognizer: RapidOCR's three ONNX models on one thread or on a card, offline.

The models are those of its own package: every model has its path inside it. By default the library
downloads missing models from a table; here the table is empty, a missing file is an error at
loading, and there is no network access.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from operations.inference.model import check_on_card
from remote_gpu.api import Card

#: Part of every result.
IMPLEMENTATION = (
    f"rapidocr {importlib.metadata.version('rapidocr')}"
    f" on onnxruntime {importlib.metadata.version('onnxruntime')}"
)
#: Detection, direction and recognition of text; shipped in the package (Apache-2.0).
MODELS = {
    "Det": "PP-OCRv6_det_small.onnx",
    "Cls": "ch_ppocr_mobile_v2.0_cls_mobile.onnx",
    "Rec": "PP-OCRv6_rec_small.onnx",
}
#: Larger images are scaled down for detection. The library's default also scales the short side up
#: to 736, which costs ten times as much for a wide image, without better results.
DETECTION_SIDE_MAX = 1280


@dataclass(frozen=True, slots=True, kw_only=True)
class TextLine:
    """One line of text."""

    text: str
    confidence: float  #: 0…1, of the reading, four decimals
    box: tuple[tuple[int, int], ...]  #: four corners (x, y) in pixels, from the top left, clockwise


@dataclass(frozen=True, slots=True)
class RecognitionDevice:
    """An NVIDIA device for the models."""

    card: Card
    ordinal: int  #: among those that this process sees
    limit_bytes: int | None  #: of all models together; None = no limit

    def parameters(self, engine: str) -> dict[str, object]:
        """The library's parameters; its exhaustive search would be repeated for every size."""
        found: dict[str, object] = {
            f"{engine}.use_cuda": True,
            f"{engine}.cuda_ep_cfg.device_id": self.ordinal,
            f"{engine}.cuda_ep_cfg.arena_extend_strategy": "kSameAsRequested",
            f"{engine}.cuda_ep_cfg.cudnn_conv_algo_search": "HEURISTIC",
        }
        if self.limit_bytes is not None:
            found[f"{engine}.cuda_ep_cfg.gpu_mem_limit"] = self.limit_bytes // len(MODELS)
        return found


class Recognizer:
    """Loaded models, deterministic on one machine. Thread-safe; calls are serialised."""

    def __init__(self, device: RecognitionDevice | None = None) -> None:
        """Load; on the CPU without a device.

        Raises FileNotFoundError naming a missing model, OpFailed(ENOTSUP) for a card without its
        libraries.
        """
        self._device = device
        import cv2  # slow to import; for hosts that recognise text only

        with _without_downloads():
            from rapidocr import RapidOCR

        cv2.setNumThreads(1)  # a lease has one core of the host
        engine = "EngineConfig.onnxruntime"
        self._engine: Any = RapidOCR(
            params={
                "Global.log_level": "critical",
                "Global.text_score": 0.0,  # callers filter by confidence
                **{f"{part}.model_path": str(path) for part, path in model_paths().items()},
                f"{engine}.intra_op_num_threads": 1,
                f"{engine}.inter_op_num_threads": 1,
                "Det.limit_type": "max",
                "Det.limit_side_len": DETECTION_SIDE_MAX,
                **({} if device is None else device.parameters(engine)),
            }
        )
        self._lock = threading.Lock()
        self.read(_blank())  # loads the models now, not in a job
        if device is not None:
            for part in ("text_det", "text_cls", "text_rec"):
                check_on_card(getattr(self._engine, part).session.session)

    def read(self, pixels: npt.NDArray[np.uint8]) -> tuple[TextLine, ...]:
        """The lines from top to bottom, then left to right. Raises OpFailed: ENOMEM, EIO for errors
        of a card."""
        device = self._device
        call = nullcontext() if device is None else device.card.library("RapidOCR")
        with self._lock, call:  # the time of waiting is none of the call
            found = self._engine(pixels)
        if found.txts is None:
            return ()
        return tuple(
            TextLine(
                text=text,
                confidence=round(float(confidence), 4),
                box=tuple((round(float(x)), round(float(y))) for x, y in box),
            )
            for text, confidence, box in zip(found.txts, found.scores, found.boxes, strict=True)
        )


@contextmanager
def _without_downloads() -> Iterator[None]:
    """Import rapidocr with an empty table of downloads. It would parse the table twice in pure
    Python: two thirds of the time to load everything (1.1 of 1.7 s, measured)."""
    from omegaconf import OmegaConf

    load = OmegaConf.load

    def load_all_but_downloads(file: str | Path) -> object:
        if Path(str(file)).name == "default_models.yaml":
            return OmegaConf.create()
        return load(file)

    loading: Any = OmegaConf  # replaces a method, which its type forbids
    loading.load = load_all_but_downloads
    try:
        yield
    finally:
        loading.load = load


def model_paths() -> dict[str, Path]:
    """The paths of the models in the installed package. Raises FileNotFoundError."""
    package = importlib.util.find_spec("rapidocr")
    if package is None or package.origin is None:
        raise FileNotFoundError("the package rapidocr is not installed on this host")
    folder = Path(package.origin).parent / "models"
    paths = {part: folder / name for part, name in MODELS.items()}
    for path in paths.values():
        if not path.is_file():
            raise FileNotFoundError(f"this rapidocr lacks {path.name}; install version 3.10")
    return paths


def _blank() -> npt.NDArray[np.uint8]:
    """A white image with three black bars, which look enough like text for all three models."""
    pixels = np.full((64, 192, 3), 255, np.uint8)
    for left in (40, 80, 120):
        pixels[20:44, left : left + 10] = 0
    return pixels
