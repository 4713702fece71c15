"""Measuring products: speed, accuracy against the stated contract, and profiles. What ``bench``, ``plot`` and
``profile`` of the command line are made of; nothing else imports it.
"""
