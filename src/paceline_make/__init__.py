"""Preparation before texts are written: draft heads are trained (the only room where gradients flow), dictionaries and
datastores are built from texts, on one machine or on a cluster."""
