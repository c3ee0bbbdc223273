#!/usr/bin/env python3
"""Fits a smooth curve through the points of a CSV file. Ordinary PyTorch: it knows no lease."""

import csv
import os
import sys
from pathlib import Path

import torch

STEPS = 2000


def main() -> None:
    if not torch.cuda.is_available():
        sys.exit("PyTorch finds no GPU; the lines of the forwarder above have the reason")
    source = Path(os.environ["INPUT_FILE_PATH"])
    with source.open(newline="") as file:
        points = [(float(x), float(y)) for x, y in csv.reader(file)]
    x, y = torch.tensor(points, device="cuda").split(1, dim=1)

    torch.manual_seed(0)
    layers = (torch.nn.Linear(1, 64), torch.nn.Tanh(), torch.nn.Linear(64, 1))
    model = torch.nn.Sequential(*layers).to("cuda")
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(STEPS):
        optimizer.zero_grad(set_to_none=True)
        loss = torch.nn.functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()

    fitted = model(x).detach().cpu()[:, 0].tolist()  # waits for all that was sent
    print(f"{len(points)} points on {torch.cuda.get_device_name()}, error {loss.item():.2g}")
    target = Path(os.environ["TMP_OUTPUT_DIR"], f"{source.stem}.fit.csv")
    with target.open("w", newline="") as file:
        csv.writer(file).writerows([px, py, f] for (px, py), f in zip(points, fitted))


if __name__ == "__main__":
    main()
