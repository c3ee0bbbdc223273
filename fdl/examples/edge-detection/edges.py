#!/usr/bin/env python3
"""Draws the edges of a grey image (PGM) with two kernels of its own on the leased device."""

import os
import re
import sys
from pathlib import Path

import remote_gpu.client as gpu

KERNELS = """
/* A pixel's neighbourhood, the border repeated. */
#define AT(image, x, y) image[clamp(y, 0, height - 1) * width + clamp(x, 0, width - 1)]

__kernel void smooth(__global float *target, __global const uchar *image, int width, int height)
{
    int x = get_global_id(0), y = get_global_id(1);
    if (x >= width || y >= height) return;
    float sum = 0.0f;
    for (int down = -1; down <= 1; down++)
        for (int right = -1; right <= 1; right++)
            sum += (2 - abs(down)) * (2 - abs(right)) * (float)AT(image, x + right, y + down);
    target[y * width + x] = sum / 16.0f;
}

__kernel void edges(__global uchar *target, __global const float *image, int width, int height)
{
    int x = get_global_id(0), y = get_global_id(1);
    if (x >= width || y >= height) return;
    float across = 0.0f, along = 0.0f;
    for (int i = -1; i <= 1; i++) {
        across += (2 - abs(i)) * (AT(image, x + 1, y + i) - AT(image, x - 1, y + i));
        along += (2 - abs(i)) * (AT(image, x + i, y + 1) - AT(image, x + i, y - 1));
    }
    target[y * width + x] = (uchar)min(sqrt(across * across + along * along), 255.0f);
}
"""
GROUP = 8  # pixels of a side that are computed together


def read_pgm(data):
    """Width, height and pixels of a binary PGM with 8 bits a pixel."""
    head = re.match(rb"P5\s+(?:#[^\n]*\n\s*)*(\d+)\s+(\d+)\s+255\s", data)
    if head is None:
        sys.exit("not a binary PGM image with 255 shades")
    width, height = int(head[1]), int(head[2])
    pixels = data[head.end() :]
    if width * height == 0 or len(pixels) != width * height:
        sys.exit(f"{len(pixels)} bytes are not an image of {width} x {height} pixels")
    return width, height, pixels


def edge_graph(width, height):
    """Two launches; the smoothed image never leaves the device."""
    graph = gpu.Graph(KERNELS)
    image = graph.input("image", width * height)
    smoothed = graph.temporary("smoothed", 4 * width * height)
    edges = graph.output("edges", width * height)
    every = [-(-side // GROUP) * GROUP for side in (width, height)]
    graph.launch("smooth", every, (GROUP, GROUP), smoothed, image, width, height)
    graph.launch("edges", every, (GROUP, GROUP), edges, smoothed, width, height)
    return graph


def main():
    source = Path(os.environ["INPUT_FILE_PATH"])
    width, height, pixels = read_pgm(source.read_bytes())
    try:
        with gpu.connect() as device:
            found = device.run(edge_graph(width, height), image=pixels)
    except gpu.RemoteError as error:
        sys.exit(f"edge detection: {error}")
    target = Path(os.environ["TMP_OUTPUT_DIR"], f"{source.stem}.edges.pgm")
    target.write_bytes(b"P5\n%d %d\n255\n" % (width, height) + bytes(found["edges"]))
    print(f"{width} x {height} pixels, by {found.implementation}")


if __name__ == "__main__":
    main()
