"""`python -m orchgpu` is the `orchgpu` command."""

from orchgpu.cli import main

if __name__ == "__main__":
    main()
