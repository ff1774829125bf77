"""The data's way from disk to a batch on the device: order, store, feed; samples, crops, rows.

The rooms are imported by their own names (`rankwise.data.samples`, `rankwise.data.order`, ...), never re-exported here.
"""
