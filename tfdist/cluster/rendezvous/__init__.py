"""All workers connect to each other over TCP and compare versions, config and workdir before TensorFlow starts.

`rendezvous.rendezvous` is the entry point. protocol.py: state of one worker; messages.py: the fields of messages;
decision.py: rank 0's decision, in words; rpc.py: one signed request and reply per connection; alone.py: the only worker
of a run. Without TensorFlow.
"""
