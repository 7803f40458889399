"""A recorded run in the formats that other tools read.

One module per format, each a function from a recorded run to a file or a folder: LeRobotDataset
v3, HDF5 in robomimic's layout, Rerun, LeRobot's ``eval_info.json``, and a timeline for Perfetto.
All of them stream: one episode is in memory at a time.
"""
