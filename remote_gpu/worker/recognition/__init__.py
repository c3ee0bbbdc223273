"""Text recognition in images with the models of the package `rapidocr`.

The operation is `remote_gpu.worker.operations.text_recognition`.
"""
