"""What hocket asks of the things that users bring, one page for each.

    policy.py     a model that answers observations with chunks of actions
    module.py     what a torch module may offer beside its chunks: the steps that made them
    env.py        a suite of tasks, and what its envs may do beyond gymnasium's contract
    batched.py    a simulator that steps many rows at once
    runtime.py    where workers live: it starts and ends them
    link.py       the parent's end of the stream to one worker, which a runtime gives
    recorder.py   what keeps a record: readers beside the engine, sinks inside workers

A contract is a Protocol of a few methods: nothing has to be subclassed or registered. What only
some implementations can do is a Protocol of its own, an ability, which hocket looks for where the
object is built; whoever lacks it simply does not have its methods. For each contract there is a
check (`check_policy`, `check_env`, `check_suite`, `check_batched`, `check_runtime`, `check_reader`,
`check_sink`; docs/architecture.md) that tries the rules of its page on anyone's implementation.

The values that these methods take and give are in `hocket.core.data` and `hocket.core.events`.
"""
