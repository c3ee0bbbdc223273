"""The roles, one file each: `ROLE` is a `orchgpu.permissions.model.RoleKind`."""
