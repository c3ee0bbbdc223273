"""Support of the commands about objects: places, inputs, functions without a device."""
