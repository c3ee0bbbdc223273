"""The commands of `orchgpu`: a folder for each section of --help, a file for each command."""
