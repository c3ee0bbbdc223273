"""Text recognition in images with the models of the package `rapidocr`.

The operation is `operations.plugins.text_recognition`.
"""
