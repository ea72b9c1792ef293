"""Merge, shuffle, tokenize: records of many shapes become one samples file whose ids are what the model will see.

Files, in the order in which a record meets them:

    options     what the user asked for                    recipe     a YAML file that names and weighs sources
    sources     paths -> named, sorted source files        containers recognise a file, stream its records
    jsontext    records of JSONL and JSON text             tables     records of Parquet and Arrow
    layout      how records lie in a JSON text             progress   the bar
    shapes      a record -> conversation, ids or raw text  messages   one message -> canonical message
    toolcalls   tool calls and their results               thinking   thinking written inside the text
    tokentable  which token each id means                  tokens     text runs -> ids
    abilities   what a chat template can express           template   rendering with what it can't put inline
    vetting     repairs that need to know the template     turns      conversation -> rendered samples
    answers     an answer's prompt, text and parts         marks      where its fields went in the rendered text
    idrecords   checks and parts of ids without text       assemble   runs and ids -> one checked sample
    capping     the length cap, and what it leaves         work       one chunk of records -> packed samples
    spill       buckets on disk, in shuffle order          draw       which samples of a source are taken
    merge       buckets -> samples.parquet                 report     what happened to every record
    run         the whole command                          orphans    workers end with it, however it ends
    show        samples for the eye
"""

from extractor.prepare.options import PrepareOptions
from extractor.prepare.run import prepare

__all__ = ["PrepareOptions", "prepare"]
