"""The decoding of image files, with a limit on pixels."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image, UnidentifiedImageError

from remote_gpu.api import Quota, invalid

#: Of an image (an A4 page at 300 dpi has 8.7 million).
PIXELS_MAX = 16_000_000
_FORMATS = ("PNG", "JPEG")
#: Peak memory of decoding per pixel (measured with Pillow 13, rounded up).
_WORKING_BYTES, _WORKING_BYTES_TRANSPARENT = 16, 24
#: Pillow would warn of large images, by filters that all threads of a process share.
Image.MAX_IMAGE_PIXELS = None


def decode(data: memoryview, quota: Quota) -> npt.NDArray[np.uint8]:
    """An array of height × width × 3 in BGR order (as for OpenCV); transparency becomes white.

    Raises OpFailed: EINVAL for anything but a supported image, ENOMEM. The size is checked before
    any pixel is decoded.
    """
    try:
        with quota.held(len(data)), Image.open(io.BytesIO(data), formats=_FORMATS) as image:
            width, height = image.size
            if width * height > PIXELS_MAX:
                raise invalid(f"{width} × {height} pixels, more than {PIXELS_MAX}")
            each = _WORKING_BYTES_TRANSPARENT if image.has_transparency_data else _WORKING_BYTES
            with quota.held(each * width * height):
                return _blue_first(image)
    except UnidentifiedImageError:
        raise invalid(f"not an image in a supported format ({', '.join(_FORMATS)})") from None
    except (OSError, SyntaxError, ValueError) as error:
        raise invalid(f"the image is damaged: {error}") from None


def _blue_first(image: Any) -> npt.NDArray[np.uint8]:
    if image.has_transparency_data:
        image = image.convert("RGBA")
        paper = Image.new("RGBA", image.size, "white")
        image = Image.alpha_composite(paper, image)
    return np.ascontiguousarray(np.asarray(image.convert("RGB"))[:, :, ::-1])
