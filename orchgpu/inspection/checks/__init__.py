"""The checks, one file each: `CHECK` is a `orchgpu.inspection.model.Check`."""
