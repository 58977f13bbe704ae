"""Bad arguments: each is refused with an error that names the argument and what is expected.

A row is a call and the words that its error must contain. Every call on a client is made on both
twins, which must raise the same error with the same words.
"""

from __future__ import annotations

import asyncio
import inspect
import math
from dataclasses import fields
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final
from unittest.mock import patch

import pytest

import downrange
from downrange import Cluster, ConsumerOptions, Message, OptionError, QueueId, ReceivedMessage
from tests.guards.server_loop import NAME_SERVER, TOPIC, AnsweringDialer

if TYPE_CHECKING:
    from collections.abc import Iterator

SECONDS: Final = "a number of seconds"
ABOVE_0: Final = "must be a time span in seconds, above 0 and finite"
FROM_0: Final = "must be a time span in seconds, 0 or above"
SERVERS: Final = "name servers must be a str of the form host:port, or a list of such, not"
PATH: Final = "the path of a PEM file"

#: Calls without a client: messages, options, selectors, the embedded cluster.
VALUES: Final = [
    # ---- messages ----
    ("Message(None, b'x')", "topic must be a str, not None"),
    ("Message(5, b'x')", "topic must be a str, not 5 (int)"),
    ("Message(b't', b'x')", "topic must be a str, not b't' (bytes)"),
    ("Message('t', 5)", "body must be bytes or a str, not 5 (int)"),
    ("Message('t', True)", "body must be bytes or a str, not True (bool)"),
    ("Message('t', None)", "body must be bytes or a str, not None"),
    ("Message('t', 1.5)", "body must be bytes or a str, not 1.5 (float)"),
    ("Message('t', [1, 2])", "body must be bytes or a str, not an object of type list"),
    ("Message('t', {'a': 1})", "use a MessageTemplate, which converts values"),
    ("Message('t', '\\ud800')", "body has half a surrogate pair at character 0"),
    ("Message('t', b'x', tags=['a'])", "tags must be a str, not an object of type list"),
    ("Message('t', b'x', tags=5)", "tags must be a str, not 5 (int)"),
    ("Message('t', b'x', tags=b'a')", "tags must be a str, not b'a' (bytes)"),
    ("Message('t', b'x', tags='')", "tags='' is not one tag"),
    ("Message('t', b'x', tags=' a')", "tags=' a' is not one tag"),
    ("Message('t', b'x', tags='a || b')", "tags='a || b' is not one tag"),
    ("Message('t', b'x', keys=[1])", "each of keys must be a str, not 1 (int)"),
    ("Message('t', b'x', keys=[None])", "each of keys must be a str, not None"),
    ("Message('t', b'x', keys=5)", "keys must be a str or a list of str, not 5 (int)"),
    ("Message('t', b'x', keys=None)", "keys must be a str or a list of str, not None"),
    ("Message('t', b'x', keys=b'k')", "keys must be a str or a list of str, not b'k' (bytes)"),
    ("Message('t', b'x', keys=['a b'])", "key 'a b' is empty or contains blanks"),
    ("Message('t', b'x', keys='')", "key '' is empty or contains blanks"),
    ("Message('t', b'x', properties=5)", "properties must be a dict of str to str, not 5 (int)"),
    ("Message('t', b'x', properties=[('a', 'b')])", "properties must be a dict of str to str"),
    ("Message('t', b'x', properties='a=b')", "properties must be a dict of str to str"),
    ("Message('t', b'x', properties={'a': 1})", "properties['a'] must be a str, not 1 (int)"),
    ("Message('t', b'x', properties={'a': None})", "properties['a'] must be a str, not None"),
    ("Message('t', b'x', properties={1: 'a'})", "each name of properties must be a str, not 1"),
    ("Message('t', b'x', sharding_key=7)", "sharding_key must be a str, not 7 (int)"),
    ("Message('t', b'x', sharding_key='')", "sharding_key='' is empty; leave it out"),
    ("Message('t', b'x', delay_level=0)", "delay_level=0 is not a level; levels begin at 1"),
    ("Message('t', b'x', delay_level=-1)", "delay_level=-1 is not a level"),
    ("Message('t', b'x', delay_level='3')", "delay_level must be an int, not '3' (str)"),
    ("Message('t', b'x', delay_level=1.5)", "delay_level must be an int, not 1.5 (float)"),
    ("Message('t', b'x', delay_level=True)", "delay_level must be an int, not True (bool)"),
    ("Message('t', b'x', delay_level=2**31)", "delay_level=2147483648 is not a level"),
    ("Message('t', b'x', deliver_at=5)", "deliver_at must be a datetime, not 5 (int)"),
    ("Message('t', b'x', deliver_at='now')", "deliver_at must be a datetime, not 'now' (str)"),
    ("Message('t', b'x', deliver_at=timedelta(1))", "deliver_at must be a datetime, not an object"),
    ("Message('t', b'x', deliver_at=datetime(2030, 1, 1))", "needs a time zone"),
    ("Message('t', b'x', deliver_in=timedelta(seconds=5))", "give its total_seconds()"),
    ("Message('t', b'x', deliver_in='5')", f"deliver_in must be {SECONDS}, not '5' (str)"),
    ("Message('t', b'x', deliver_in=True)", f"deliver_in must be {SECONDS}, not True (bool)"),
    ("Message('t', b'x', deliver_in=-1)", "deliver_in=-1 is not a number of seconds from 0"),
    ("Message('t', b'x', deliver_in=nan)", "deliver_in=nan is not a number of seconds from 0"),
    ("Message('t', b'x', deliver_in=inf)", "deliver_in=inf is not a number of seconds from 0"),
    ("Message('t', b'x', deliver_in=5, delay_level=3)", "one way only, not by delay_level and"),
    ("Message('t', b'x', flag='1')", "flag must be an int, not '1' (str)"),
    ("Message('t', b'x', flag=None)", "flag must be an int, not None"),
    ("Message('t', b'x', flag=1.0)", "flag must be an int, not 1.0 (float)"),
    ("Message('t', b'x', wait_stored='no')", "wait_stored must be True or False, not 'no' (str)"),
    ("Message('t', b'x', wait_stored=None)", "wait_stored must be True or False, not None"),
    ("Message('t', b'x', wait_stored=0)", "wait_stored must be True or False, not 0 (int)"),
    # ---- options of clients ----
    ("CompressedMessage('t', b'x', compression='rar')", "compression='rar' must be one of zlib"),
    ("CompressedMessage('t', 5, compression='zlib')", "body must be bytes or a str, not 5 (int)"),
    ("Credentials(5, 'b')", "access_key must be a str, not 5 (int)"),
    ("Credentials('a', b'geheim')", "secret_key must be a str, not an object of type bytes"),
    ("Credentials('a', None)", "secret_key must be a str"),
    ("Credentials('', '')", "credentials need an access key and a secret key"),
    ("Credentials('a', 'b', 5)", "security_token must be a str"),
    ("TLS(ca=5)", f"ca must be {PATH}, not 5 (int)"),
    ("TLS(certificate=['c.pem'])", f"certificate must be {PATH}, not an object of type list"),
    ("TLS(verify='no')", "verify must be True or False, not 'no' (str)"),
    ("TLS(check_host=0)", "check_host must be True or False, not 0 (int)"),
    ("TLS(context=True)", "context must be an ssl.SSLContext, not True (bool)"),
    ("TLS(key='k.pem')", "key needs certificate"),
    ("TLS(certificate='c', key='k', key_password=b'x')", "key_password must be a str"),
    ("Proxy(5)", "address must be a str, not 5 (int)"),
    ("Proxy(('127.0.0.1', 1080))", "address must be a str, not an object of type tuple"),
    ("Proxy('nowhere')", "'nowhere' is not an address of the form host:port"),
    ("Proxy('h:1', username=5)", "username must be a str, not 5 (int)"),
    ("Proxy('h:1', 'me', b'geheim')", "password must be a str, not an object of type bytes"),
    ("ClientOptions(call_timeout='3')", f"call_timeout must be {SECONDS}, not '3' (str)"),
    ("ClientOptions(call_timeout=0)", f"call_timeout=0 {ABOVE_0}"),
    ("ClientOptions(call_timeout=nan)", f"call_timeout=nan {ABOVE_0}"),
    ("ClientOptions(call_timeout=1e9)", "call_timeout=1000000000.0 is longer than 2000000 seconds"),
    ("ClientOptions(connect_timeout=inf)", f"connect_timeout=inf {ABOVE_0}"),
    ("ClientOptions(connect_timeout=None)", f"connect_timeout must be {SECONDS}, not None"),
    ("ClientOptions(heartbeat_interval=timedelta(seconds=5))", "give its total_seconds()"),
    ("ClientOptions(connect_on_start='yes')", "connect_on_start must be True or False, not 'yes'"),
    ("ClientOptions(vip_channel=1)", "vip_channel must be True or False, not 1 (int)"),
    ("ClientOptions(in_flight_max=1.5)", "in_flight_max must be an int, not 1.5 (float)"),
    ("ClientOptions(callback_threads=0)", "callback_threads=0 is less than 1"),
    ("ClientOptions(callback_threads=True)", "callback_threads must be an int, not True (bool)"),
    ("ClientOptions(busy_poll='fast')", "busy_poll must be a number, not 'fast' (str)"),
    ("ClientOptions(busy_poll=inf)", "busy_poll=inf is not a finite number"),
    ("ClientOptions(namespace=5)", "namespace must be a str, not 5 (int)"),
    ("ClientOptions(namespace='')", "namespace='' is empty; leave it out"),
    ("ClientOptions(namespace='a b')", "namespace='a b' has characters that a topic's name cannot"),
    ("ClientOptions(instance=5)", "instance must be a str, not 5 (int)"),
    ("ClientOptions(discovery_url=5)", "discovery_url must be a str, not 5 (int)"),
    ("ClientOptions(discovery_url='ftp://x')", "discovery_url='ftp://x' must begin with http"),
    ("ClientOptions(header_codec='xml')", "header_codec='xml' must be one of json, binary"),
    ("ClientOptions(header_codec=None)", "header_codec=None must be one of json, binary"),
    ("ClientOptions(zone=5)", "zone must be a str, not 5 (int)"),
    ("ClientOptions(zone_mode=True)", "zone_mode=True needs the name of the zone"),
    ("ClientOptions(zone='z', zone_mode='yes')", "zone_mode must be True or False, not 'yes' (st"),
    ("ClientOptions(access_channel='vpn')", "access_channel='vpn' must be one of local, cloud"),
    ("ClientOptions(callback_executor=5)", "callback_executor=5 has no method submit"),
    ("ProducerOptions(retry_backoff='1')", f"retry_backoff must be {SECONDS}, not '1' (str)"),
    ("ProducerOptions(retry_backoff=-1)", f"retry_backoff=-1 {FROM_0}"),
    ("ProducerOptions(when_full='drop')", "when_full='drop' must be one of block, raise, queue"),
    ("ProducerOptions(timeout='3')", f"timeout must be {SECONDS}, not '3' (str)"),
    ("ProducerOptions(timeout=-1)", f"timeout=-1 {ABOVE_0}"),
    ("ProducerOptions(timeout=inf)", f"timeout=inf {ABOVE_0}"),
    ("ProducerOptions(timeout=True)", f"timeout must be {SECONDS}, not True (bool)"),
    ("ProducerOptions(attempt_timeout=0)", f"attempt_timeout=0 {ABOVE_0}"),
    ("ProducerOptions(retries=1.5)", "retries must be an int, not 1.5 (float)"),
    ("ProducerOptions(retries='2')", "retries must be an int, not '2' (str)"),
    ("ProducerOptions(retries=-1)", "retries=-1 is less than 0"),
    ("ProducerOptions(retries=True)", "retries must be an int, not True (bool)"),
    ("ProducerOptions(submit_retries=None)", "submit_retries must be an int, not None"),
    ("ProducerOptions(retry_codes=5)", "retry_codes must be a set of int, not 5 (int)"),
    ("ProducerOptions(retry_codes={'1'})", "each of retry_codes must be an int, not '1' (str)"),
    ("ProducerOptions(retry_when_not_stored=1)", "retry_when_not_stored must be True or False"),
    ("ProducerOptions(compression='gzip')", "compression='gzip' must be one of zlib, lz4, zstd"),
    ("ProducerOptions(compression=5)", "compression=5 must be one of zlib, lz4, zstd"),
    ("ProducerOptions(compression_level=10)", "compression_level=10 is not between 0 and 9"),
    ("ProducerOptions(compression_level='5')", "compression_level must be an int, not '5' (str)"),
    ("ProducerOptions(compress_over_bytes=0)", "compress_over_bytes=0 is less than 1"),
    ("ProducerOptions(body_bytes_max='4MB')", "body_bytes_max must be an int, not '4MB' (str)"),
    ("ProducerOptions(in_flight_max=1)", "in_flight_max=1 is less than 10"),
    ("ProducerOptions(auto_create='yes')", "auto_create='yes' must be one of off, first-broker"),
    ("ProducerOptions(auto_create=True)", "auto_create=True must be one of off, first-broker"),
    ("ProducerOptions(auto_batch=True)", "auto_batch must be an AutoBatch or None, not True"),
    ("ProducerOptions(auto_batch={'hold_ms': 1})", "auto_batch must be an AutoBatch or None, not"),
    ("ProducerOptions(fault_tolerance=True)", "fault_tolerance must be a FaultTolerance or its"),
    ("ProducerOptions(fault_tolerance='6.x')", "fault_tolerance='6.x' must be one of off, 4.x"),
    ("ProducerOptions(trace='yes')", "trace must be a Trace, True or False, not 'yes' (str)"),
    ("ProducerOptions(header_version=3)", "header_version=3 must be one of 1, 2"),
    ("ProducerOptions(header_version=True)", "header_version=True must be one of 1, 2"),
    ("ProducerOptions(default_topic=5)", "default_topic must be a str, not 5 (int)"),
    ("ProducerOptions(default_topic='a b')", "default_topic='a b' is not a legal topic name"),
    ("PullOptions(batch_count=0)", "batch_count=0 is less than 1"),
    ("PullOptions(batch_count='32')", "batch_count must be an int, not '32' (str)"),
    ("PullOptions(decode_body='no')", "decode_body must be True or False, not 'no' (str)"),
    ("PullOptions(retry_backoff=0)", f"retry_backoff=0 {ABOVE_0}"),
    ("PullOptions(retry_backoff=2, retry_backoff_max=1)", "retry_backoff_max=1 is less than"),
    ("PullOptions(suspend=-1)", f"suspend=-1 {ABOVE_0}"),
    ("PullOptions(suspend=None)", f"suspend must be {SECONDS}, not None"),
    ("ConsumerOptions(mode='push')", "mode='push' must be one of concurrent, orderly, pop"),
    ("ConsumerOptions(model='all')", "model='all' must be one of clustering, broadcast"),
    ("ConsumerOptions(batch=0)", "batch=0 is not between 1 and 1024"),
    ("ConsumerOptions(concurrency=1001)", "concurrency=1001 is not between 1 and 1000"),
    ("ConsumerOptions(concurrency='20')", "concurrency must be an int, not '20' (str)"),
    ("ConsumerOptions(pull_batch=0)", "pull_batch=0 is not between 1 and 1024"),
    ("ConsumerOptions(handle_timeout=0)", f"handle_timeout=0 {ABOVE_0}"),
    ("ConsumerOptions(suspend=None)", f"suspend must be {SECONDS}, not None"),
    ("ConsumerOptions(buffer_messages=0)", "buffer_messages=0 is less than 1"),
    ("ConsumerOptions(buffer_bytes=1.5)", "buffer_bytes must be an int, not 1.5 (float)"),
    ("ConsumerOptions(queue_messages=0)", "queue_messages=0 is less than 1"),
    ("ConsumerOptions(span=0)", "span=0 is less than 1"),
    ("ConsumerOptions(commit_interval=0)", f"commit_interval=0 {ABOVE_0}"),
    ("ConsumerOptions(rebalance_interval=inf)", f"rebalance_interval=inf {ABOVE_0}"),
    ("ConsumerOptions(lock_interval=30)", "lock_interval=30 is not less than 30: a lock is trust"),
    ("ConsumerOptions(handover_timeout=-1)", f"handover_timeout=-1 {FROM_0}"),
    ("ConsumerOptions(suspend_queue=0)", f"suspend_queue=0 {ABOVE_0}"),
    ("ConsumerOptions(invisible=0.5)", "invisible=0.5 is not from 1 second to 12 hours"),
    ("ConsumerOptions(invisible=43_201)", "invisible=43201 is not from 1 second to 12 hours"),
    ("ConsumerOptions(invisible=nan)", "invisible=nan is not from 1 second to 12 hours"),
    ("ConsumerOptions(invisible='60')", f"invisible must be {SECONDS}, not '60' (str)"),
    ("ConsumerOptions(invisible=None)", f"invisible must be {SECONDS}, not None"),
    ("ConsumerOptions(invisible=True)", f"invisible must be {SECONDS}, not True (bool)"),
    ("ConsumerOptions(invisible=timedelta(seconds=5))", "give its total_seconds()"),
    ("ConsumerOptions(retries=-1)", "retries=-1 is less than 0"),
    ("ConsumerOptions(messages_max=0)", "messages_max=0 is less than 1"),
    ("ConsumerOptions(broadcast_retries=-1)", "broadcast_retries=-1 is less than 0"),
    ("ConsumerOptions(start='first')", "start='first' is not 'earliest', 'latest' or a datetime"),
    ("ConsumerOptions(start=datetime(2030, 1, 1))", "needs a time zone"),
    ("ConsumerOptions(strategy=5)", "strategy"),
    ("ConsumerOptions(trace='yes')", "trace must be a Trace, True or False, not 'yes' (str)"),
    ("ConsumerOptions(decode_body=1)", "decode_body must be True or False, not 1 (int)"),
    ("ConsumerOptions(check_subscriptions=1)", "check_subscriptions must be True or False, not 1"),
    ("ConsumerOptions(model='broadcast', offset_store=5)", "offset_store=5 has no method load()"),
    ("ConsumerOptions(model='broadcast', offset_store=MemoryOffsets)", "write MemoryOffsets()"),
    (
        "ConsumerOptions(offset_store=MemoryOffsets())",
        "offset_store is for model='broadcast'",
    ),
    ("ConsumerOptions(model='broadcast', mode='pop')", "mode='pop' shares messages; model='broad"),
    ("ConsumerOptions(retry_backoff=2, retry_backoff_max=1)", "retry_backoff_max=1 is less than"),
    ("AutoBatch(hold_ms='x')", "hold_ms must be an int, not 'x' (str)"),
    ("AutoBatch(hold_ms=0)", "hold_ms=0 is not between 1 and 30000"),
    ("AutoBatch(hold_bytes=1.5)", "hold_bytes must be an int, not 1.5 (float)"),
    ("Trace(topic=5)", "topic must be a str, not 5 (int)"),
    ("Trace(dispatcher=5)", "dispatcher=5 has no method append()"),
    ("Trace(batch_count=0)", "batch_count=0 is not between 1 and 20"),
    ("FaultTolerance(style='6.x')", "style='6.x' must be one of off, 4.x, 5.x"),
    ("FaultTolerance(latency_ms=5, avoid_ms=5)", "latency_ms must be a tuple of int, not 5 (int)"),
    ("FaultTolerance(latency_ms=('1',), avoid_ms=(0,))", "each of latency_ms must be an int, not"),
    ("FaultTolerance(detect='no')", "detect must be True or False, not 'no' (str)"),
    ("Hooks(before_send=[print])", "is not a tuple of functions"),
    ("Hooks(before_send=5)", "before_send=5 is not a tuple of functions"),
    ("Hooks(before_send=(5,))", "is not a tuple of functions"),
    # ---- options of servers, the embedded cluster ----
    ("ListenerOptions(host=5)", "host must be a str, not 5 (int)"),
    ("ListenerOptions(port='9876')", "port must be an int, not '9876' (str)"),
    ("ListenerOptions(port=70000)", "port=70000 is not between 0 and 65535"),
    ("NameServerOptions(store=5)", "store must be a str, not 5 (int)"),
    ("NameServerOptions(broker_timeout='5')", f"broker_timeout must be {SECONDS}, not '5' (str)"),
    ("BrokerOptions(name=5)", "name must be a str, not 5 (int)"),
    ("BrokerOptions(flush='maybe')", "flush='maybe' must be one of sync, async"),
    ("BrokerOptions(name_servers=['a:1'])", "name_servers must be a tuple of host:port, not an"),
    ("BrokerOptions(is_topic_created=1)", "is_topic_created must be True or False, not 1 (int)"),
    ("BrokerOptions(message_bytes_max=1.5)", "message_bytes_max must be an int, not 1.5 (float)"),
    ("BrokerOptions(permission=3)", "permission=3 must be one of 6, 4, 2, 0"),
    ("BrokerOptions(zone=5)", "zone must be a str, not 5 (int)"),
    ("BrokerOptions(is_vip_port_open=1)", "is_vip_port_open must be True or False, not 1 (int)"),
    ("BrokerOptions(delay_levels=5)", "delay_levels must be a str, not 5 (int)"),
    ("Cluster(brokers='2')", "brokers must be an int, not '2' (str)"),
    ("Cluster(brokers=0)", "brokers=0 is less than 1"),
    ("Cluster(brokers=1.5)", "brokers must be an int, not 1.5 (float)"),
    ("Cluster(brokers=True)", "brokers must be an int, not True (bool)"),
    ("Cluster(store=5)", "store must be a path, not 5 (int)"),
    ("Cluster(host=5)", "host must be a str, not 5 (int)"),
    ("Cluster(nameserver_port='9876')", "nameserver_port must be an int, not '9876' (str)"),
    ("Cluster(broker_port=-1)", "broker_port=-1 is not between 0 and 65535"),
    ("Cluster(flush='maybe')", "flush='maybe' must be one of sync, async"),
    ("Cluster(broker={'flush': 'sync'})", "broker must be of type BrokerOptions, not an object"),
    ("Cluster(nameserver=5)", "nameserver must be of type NameServerOptions, not 5 (int)"),
    ("Cluster(listener={})", "listener must be of type ListenerOptions, not an object of type"),
    ("Cluster(vip='yes')", "vip must be True or False, not 'yes' (str)"),
    ("Cluster(tls=True)", "tls must be of type SSLContext, not True (bool)"),
    ("Cluster(access=5)", "access must be a path, not 5 (int)"),
    # ---- selectors ----
    ("by_hash(None)", "by_hash takes a str or an int"),
    ("by_hash(1.5)", "by_hash takes a str or an int"),
    ("by_room()", "by_room needs the name of at least one room"),
    ("by_room(5)", "each room of by_room must be a str, not 5 (int)"),
    ("by_room('a', room_of=5)", "room_of must be a function, not 5 (int)"),
    ("by_room('a', then=5)", "then must be a selector such as by_hash(key), or a function, not 5"),
]

#: Calls on classes and objects of clients, which exist for threads and for asyncio.
CALLS: Final = [
    # ---- constructors ----
    ("Client(5)", f"{SERVERS} 5 (int)"),
    ("Client(('127.0.0.1', 9876))", f"{SERVERS} 9876 (int); write '127.0.0.1:9876'"),
    ("Client([None])", f"{SERVERS} None"),
    ("Client(b'127.0.0.1:9876')", f"{SERVERS} b'127.0.0.1:9876' (bytes)"),
    ("Client('127.0.0.1')", "'127.0.0.1' is not an address of the form host:port"),
    ("Client('h:99999')", "'h:99999' is not an address of the form host:port"),
    ("Client('h:1', options={'call_timeout': 1})", "options must be of type ClientOptions, not"),
    ("Client('h:1', options=ProducerOptions())", "options must be of type ClientOptions, not an"),
    ("Client('h:1', credentials=('a', 'b'))", "credentials must be of type Credentials, not an"),
    ("Client('h:1', tls=True)", "tls must be of type TLS, not True (bool); write TLS(…)"),
    ("Client('h:1', proxy='h:1080')", "proxy must be of type Proxy, not 'h:1080' (str)"),
    ("Client('h:1', hooks=[print])", "hooks must be of type Hooks, not an object of type list"),
    ("Producer('h:1', group=None)", "group must be a str, not None"),
    ("Producer('h:1', group=5)", "group must be a str, not 5 (int)"),
    ("Producer('h:1', group='')", "group '' is blank; give a name"),
    ("Producer('h:1', group='a b')", "group 'a b' contains ' '; letters, digits"),
    ("Producer('h:1', group='DEFAULT_PRODUCER')", "is Java's placeholder for a missing name"),
    ("Producer('h:1', group='g' * 121)", "has 121 characters, 120 are allowed"),
    ("Producer(('h', 1), group='g')", f"{SERVERS} 1 (int)"),
    ("Producer(5, group='g')", f"{SERVERS} 5 (int)"),
    ("Producer('h:1', group='g', options={})", "options must be of type ProducerOptions, not an"),
    ("Producer('h:1', group='g', client_options={})", "client_options must be of type ClientOpti"),
    ("Producer('h:1', group='g', credentials=('a', 'b'))", "credentials must be of type Credenti"),
    ("Producer('h:1', group='g', tls=True)", "tls must be of type TLS, not True (bool)"),
    ("Producer('h:1', group='g', hooks=[print])", "hooks must be of type Hooks, not an object of"),
    ("Producer('h:1', group='g', proxy=5)", "proxy must be of type Proxy, not 5 (int)"),
    ("Producer(client, group='g', tls=TLS())", "tls: give it to the client, which has its own"),
    ("Producer(client, group='g', hooks=5)", "hooks must be of type Hooks, not 5 (int)"),
    ("Producer('h:1', group='g', topics='orders')", "topics must be a list of str, not 'orders'"),
    ("Producer('h:1', group='g', topics=5)", "topics must be a list of str, not 5 (int)"),
    ("Producer('h:1', group='g', topics=[5])", "each of topics must be a str, not 5 (int)"),
    ("Producer('h:1', group='g', topics=['a b'])", "topic 'a b' contains ' '; letters, digits"),
    ("TransactionProducer('h:1', group='g', check=None)", "check=None cannot be called; give a"),
    ("TransactionProducer('h:1', group='g', check=5)", "check=5 cannot be called; give a function"),
    ("TransactionProducer('h:1', group=5, check=print)", "group must be a str, not 5 (int)"),
    ("PullConsumer('h:1', group=5)", "group must be a str, not 5 (int)"),
    ("PullConsumer('h:1', group='g', options={})", "options must be of type PullOptions, not an"),
    ("PullConsumer('h:1', group='g', auto_commit=0)", "auto_commit=0 must be a time span"),
    (
        "PullConsumer('h:1', group='g', auto_commit=5.0, options=PullOptions(auto_commit=2.0))",
        "auto_commit=5.0 and PullOptions(auto_commit=2.0) differ; give one of them",
    ),
    ("PullConsumer('h:1', group='g', tls='on')", "tls must be of type TLS, not 'on' (str)"),
    ("PullConsumer(5, group='g')", f"{SERVERS} 5 (int)"),
    ("SimpleConsumer('h:1', group=5)", "group must be a str, not 5 (int)"),
    ("SimpleConsumer('h:1', group='g', options={})", "options must be of type SimpleOptions, not"),
    ("SimpleConsumer('h:1', group='g', subscribe=5)", "subscribe must be a list of topics, or a"),
    ("SimpleConsumer('h:1', group='g', subscribe=[5])", "subscribe must be a list of topics, or a"),
    ("SimpleConsumer('h:1', group='g', subscribe=[''])", "topic='' is blank; give a name"),
    ("SimpleConsumer('h:1', group='g', subscribe={'t': 5})", "tags must be a str or an Sql, not 5"),
    ("SimpleConsumer('h:1', group='g', subscribe={'t': '||'})", "tags='||' contains no tag"),
    ("PushConsumer('h:1', group=5, subscribe='t')", "group must be a str, not 5 (int)"),
    ("PushConsumer('h:1', group='DEFAULT_CONSUMER', subscribe='t')", "is Java's placeholder for a"),
    ("PullConsumer('h:1', group='%DLQ%g')", "'%DLQ%g' is the name of a topic of a group; give the"),
    ("SimpleConsumer('h:1', group='%RETRY%g')", "'%RETRY%g' is the name of a topic of a group"),
    ("PushConsumer('h:1', group='g', subscribe='t', options={})", "options must be of type Consu"),
    ("PushConsumer('h:1', group='g', subscribe='t', handler=5)", "handler=5 cannot be called; giv"),
    ("PushConsumer('h:1', group='g', subscribe='t', tls='on')", "tls must be of type TLS, not 'on"),
    ("PushConsumer(5, group='g', subscribe='t')", f"{SERVERS} 5 (int)"),
    ("PushConsumer('h:1', group='g', subscribe=5)", "subscribe must be a topic, a list of topics,"),
    ("PushConsumer('h:1', group='g', subscribe=[])", "subscribe names no topic; give at least one"),
    ("PushConsumer('h:1', group='g', subscribe=[5])", "each topic of subscribe must be a str, not"),
    (
        "PushConsumer('h:1', group='g', subscribe='a b')",
        "topic 'a b' contains ' '; letters, digits",
    ),
    (
        "PushConsumer('h:1', group='g', subscribe={'t': 5})",
        "each expression of subscribe must",
    ),
    ("PushConsumer('h:1', group='g', subscribe={'t': '||'})", "tags='||' contains no tag"),
    (
        "PushConsumer('h:1', group='g', subscribe='t', options=ConsumerOptions(batch=2))",
        "batch is for handlers; iteration gives one message at a time",
    ),
    ("Admin(5)", f"{SERVERS} 5 (int)"),
    ("Admin('h:1', credentials='a:b')", "credentials must be of type Credentials, not 'a:b'"),
    ("Admin('h:1', client_options=5)", "client_options must be of type ClientOptions, not 5 (int)"),
    ("MessageTemplate(None)", "needs a Producer, not None"),
    ("MessageTemplate('h:1')", "needs a Producer, not 'h:1'"),
    ("MessageTemplate(producer, converters=5)", "converters must be a list of converters, not 5"),
    ("MessageTemplate(producer, converters=[5])", "each of converters must have the methods can_e"),
    ("MessageTemplate(producer, converters=[TextConverter])", "TextConverter is a class; give an"),
    ("MessageTemplate(producer, default_topic=5)", "default_topic must be a str, not 5 (int)"),
    # ---- sending ----
    ("producer.send('x')", "message must be a Message, not 'x' (str); write Message(topic, body)"),
    ("producer.send(None)", "message must be a Message, not None"),
    ("producer.send('x' * 99)", "x… (str); write Message(topic, body)"),
    ("producer.send(b'x')", "message must be a Message, not b'x' (bytes)"),
    ("producer.send([message])", "message must be a Message, not an object of type list"),
    ("producer.send(received)", "write Message(topic, received.body) to send its body again"),
    ("producer.send(message, queue=3)", "queue must be a QueueId, a selector such as by_hash(key)"),
    ("producer.send(message, queue='a')", "queue must be a QueueId, a selector such as by_hash"),
    ("producer.send(message, queue=QueueId(1, 'a', 0))", "topic of queue must be a str, not 1"),
    ("producer.send(message, queue=QueueId(TOPIC, 'a', '0'))", "number of queue must be an int"),
    ("producer.send(message, queue=QueueId(TOPIC, 'a', -1))", "number of queue: -1 is less than 0"),
    ("producer.send(message, queue=QueueId('other', 'a', 0))", "which belongs to another topic"),
    ("producer.send(message, timeout=0)", f"timeout=0 {ABOVE_0}"),
    ("producer.send(message, timeout=-1)", f"timeout=-1 {ABOVE_0}"),
    ("producer.send(message, timeout=nan)", f"timeout=nan {ABOVE_0}"),
    ("producer.send(message, timeout=inf)", f"timeout=inf {ABOVE_0}"),
    ("producer.send(message, timeout=1e7)", "timeout=10000000.0 is longer than 2000000 seconds"),
    ("producer.send(message, timeout='3')", f"timeout must be {SECONDS}, not '3' (str)"),
    ("producer.send(message, timeout=True)", f"timeout must be {SECONDS}, not True (bool)"),
    ("producer.send(message, timeout=timedelta(1))", "give its total_seconds()"),
    ("producer.send(Message('', b'x'))", "topic '' is blank; give a name"),
    ("producer.send(Message('a b', b'x'))", "topic 'a b' contains ' '; letters, digits"),
    ("producer.send(Message('t' * 128, b'x'))", "has 128 characters, 127 are allowed"),
    ("producer.send(Message('SCHEDULE_TOPIC_XXXX', b'x'))", "is reserved for brokers; clients"),
    ("producer.send(Message(TOPIC, b''))", "its body is empty; brokers accept only bodies of at"),
    ("producer.send(Message(TOPIC, bytes(4 * 2**20 + 1)))", "its body has 4194305 bytes, body_b"),
    ("producer.send(Message(TOPIC, b'x', flag=2**31))", "flag=2147483648 does not fit 32 bits"),
    ("producer.send(Message(TOPIC, b'x', properties={'KEYS': 'a'}))", "'KEYS' is reserved by the"),
    ("producer.send(Message(TOPIC, b'x', properties={'a': ' '}))", "neither may be blank"),
    ("producer.send(Message(TOPIC, b'x', properties={'a\\1': 'b'}))", "contains a separator"),
    ("producer.send(Message(TOPIC, b'x', properties={'a': 'v' * 32767}))", "32767 are allowed"),
    ("producer.send(Message(TOPIC, b'x', keys='k' * 32767))", "keys, tags and properties together"),
    (
        "producer.send(Message(TOPIC, b'x', tags='\\ud800'))",
        "property 'TAGS': half a",
    ),
    ("producer.send_oneway('x')", "message must be a Message, not 'x' (str)"),
    ("producer.send_oneway(message, queue=3)", "queue must be a QueueId, a selector such as by"),
    ("producer.send_oneway(message, timeout=0)", f"timeout=0 {ABOVE_0}"),
    ("producer.send_batch([b'a'])", "message 0 must be a Message, not b'a' (bytes)"),
    ("producer.send_batch([message, None])", "message 1 must be a Message, not None"),
    ("producer.send_batch(iter([message, 5]))", "message 1 must be a Message, not 5 (int)"),
    ("producer.send_batch(message)", "messages must be a list of Message, not an object of type"),
    ("producer.send_batch(5)", "messages must be a list of Message, not 5 (int)"),
    ("producer.send_batch(None)", "messages must be a list of Message, not None"),
    ("producer.send_batch('ab')", "message 0 must be a Message, not 'a' (str)"),
    ("producer.send_batch([message, Message('other', b'x')])", "a batch has one topic"),
    ("producer.send_batch([message, Message(TOPIC, b'x', deliver_in=5)])", "batches cannot be del"),
    ("producer.send_batch([message, Message(TOPIC, b'')])", "its body is empty"),
    ("producer.send_batch([message, Message(TOPIC, b'x', keys='k' * 40000)])", "40058 bytes, 327"),
    ("producer.send_batch([message], queue=3)", "queue must be a QueueId, a selector such as by"),
    ("producer.send_batch([message], timeout=nan)", f"timeout=nan {ABOVE_0}"),
    ("producer.request('x')", "message must be a Message, not 'x' (str)"),
    ("producer.request(message, queue=3)", "queue must be a QueueId, a selector such as by_hash"),
    ("producer.request(message, timeout=-1)", f"timeout=-1 {ABOVE_0}"),
    ("producer.reply('x', b'y')", "request must be a ReceivedMessage, not 'x' (str)"),
    ("producer.reply(message, b'y')", "request must be a ReceivedMessage, not an object of type M"),
    ("producer.reply(received, b'y')", "cannot be replied to: it has no property CLUSTER"),
    ("producer.reply(request, 5)", "body must be bytes or a str, not 5 (int)"),
    ("producer.reply(request, b'y', timeout=0)", f"timeout=0 {ABOVE_0}"),
    ("producer.recall(None)", "there is no recall handle"),
    ("producer.recall(5)", "handle must be a str, not 5 (int)"),
    ("producer.recall('nonsense')", "recall: "),
    ("producer.set_limits(in_flight_max=1)", "in_flight_max=1 is less than 10"),
    ("producer.set_limits(in_flight_max='20')", "in_flight_max must be an int, not '20' (str)"),
    ("producer.close(timeout=None)", f"timeout must be {SECONDS}, not None"),
    ("producer.close(timeout=-1)", f"timeout=-1 {FROM_0}"),
    ("producer.close(timeout=nan)", f"timeout=nan {FROM_0}"),
    ("producer.close(timeout=inf)", "timeout=inf is longer than 2000000 seconds"),
    ("producer.close(timeout='5')", f"timeout must be {SECONDS}, not '5' (str)"),
    ("client.close(timeout=None)", f"timeout must be {SECONDS}, not None"),
    ("client.set_name_servers(5)", f"{SERVERS} 5 (int)"),
    ("client.set_name_servers(('h', 1))", f"{SERVERS} 1 (int)"),
    # ---- transactions ----
    ("transactions.transaction('x')", "message must be a Message, not 'x' (str)"),
    ("transactions.transaction(message, timeout=0)", f"timeout=0 {ABOVE_0}"),
    ("transactions.send_in_transaction('x', print)", "message must be a Message, not 'x' (str)"),
    ("transactions.send_in_transaction(message, 5)", "execute=5 cannot be called; give a function"),
    ("transactions.send_in_transaction(message, print, timeout=-1)", f"timeout=-1 {ABOVE_0}"),
    ("transactions.send_in_transaction(delayed, print)", "of a transaction cannot be delayed"),
    # ---- topics, offsets, messages ----
    ("producer.create_topic(None)", "topic must be a str, not None"),
    ("producer.create_topic('')", "topic '' is blank; give a name"),
    ("producer.create_topic('a b')", "topic 'a b' contains ' '; letters, digits"),
    ("producer.create_topic('t', queues=0)", "queues=0 is not between 1 and 2147483647"),
    ("producer.create_topic('t', queues='8')", "queues must be an int, not '8' (str)"),
    ("producer.create_topic('t', queues=True)", "queues must be an int, not True (bool)"),
    ("producer.create_topic('t', read_queues=1.5)", "read_queues must be an int, not 1.5 (float)"),
    ("producer.create_topic('t', permission='rw')", "permission must be an int, not 'rw' (str)"),
    ("producer.create_topic('t', permission=8)", "permission=8 is not between 0 and 7"),
    ("producer.create_topic('t', is_ordered=1)", "is_ordered must be True or False, not 1 (int)"),
    ("producer.create_topic('t', attributes={'a': 1})", "attributes['a'] must be a str, not 1"),
    ("producer.create_topic('t', attributes=5)", "attributes must be a dict of str to str, not 5"),
    ("producer.create_topic('t', cluster=5)", "cluster must be a str, not 5 (int)"),
    ("producer.create_topic('t', brokers='broker-a')", "brokers must be a list of str, not 'brok"),
    ("producer.create_topic('t', brokers=[5])", "each of brokers must be a str, not 5 (int)"),
    ("producer.create_topic('t', timeout=0)", f"timeout=0 {ABOVE_0}"),
    ("producer.publish_queues(None)", "topic must be a str, not None"),
    ("producer.publish_queues(' ')", "topic=' ' is blank; give a name"),
    ("producer.min_offset('t')", "queue must be a QueueId, not 't' (str)"),
    ("producer.max_offset(None)", "queue must be a QueueId, not None"),
    ("producer.max_offset((TOPIC, 'a', 0))", "queue must be a QueueId, not an object of type tup"),
    ("producer.max_offset(QueueId(TOPIC, 'a', 4))", "queue 4 of topic 'guarded' does not exist"),
    ("producer.min_offset(QueueId(TOPIC, 'a', 99))", "which has the queues 0 to 3"),
    ("producer.search_offset(queue, 5)", "at must be a datetime, not 5 (int)"),
    ("producer.search_offset(queue, datetime(2030, 1, 1))", "has no time zone"),
    ("producer.search_offset(QueueId(TOPIC, 'a', 4), now)", "queue 4 of topic 'guarded' does not"),
    ("producer.earliest_store_time(5)", "queue must be a QueueId, not 5 (int)"),
    ("producer.view_message(None, 'id')", "topic must be a str, not None"),
    ("producer.view_message(TOPIC, None)", "message_id must be a str, not None"),
    ("producer.view_message(TOPIC, '')", "message_id='' is blank; give a name"),
    ("producer.view_message(TOPIC, 'id', since=5)", "since must be a datetime, not 5 (int)"),
    ("producer.query_messages(TOPIC, None)", "key must be a str, not None"),
    ("producer.query_messages(TOPIC, 'k', max_count=0)", "max_count=0 is not between 1 and 2147"),
    ("producer.query_messages(TOPIC, 'k', max_count='5')", "max_count must be an int, not '5' (s"),
    ("producer.query_messages(TOPIC, 'k', begin=5)", "begin must be a datetime, not 5 (int)"),
    ("producer.query_messages(TOPIC, 'k', end='now')", "end must be a datetime, not 'now' (str)"),
    ("producer.query_messages(TOPIC, 'k', timeout=inf)", f"timeout=inf {ABOVE_0}"),
    # ---- administration ----
    ("admin.cluster_facts(with_versions=1)", "with_versions must be True or False, not 1 (int)"),
    ("admin.cluster_facts(timeout=0)", f"timeout=0 {ABOVE_0}"),
    ("admin.update_topic(None, read_queues=1)", "topic must be a str, not None"),
    ("admin.update_topic(TOPIC, read_queues=0)", "read_queues=0 is not between 1 and 2147483647"),
    ("admin.update_topic(TOPIC, write_queues='4')", "write_queues must be an int, not '4' (str)"),
    ("admin.update_topic(TOPIC, permission=9)", "permission=9 is not between 0 and 7"),
    ("admin.update_topic(TOPIC, is_ordered='no')", "is_ordered must be True or False, not 'no'"),
    ("admin.update_topic(TOPIC, attributes={1: 'a'})", "each name of attributes must be a str"),
    ("admin.update_topic(TOPIC, brokers='a')", "brokers must be a list of str, not 'a' (str)"),
    ("admin.update_topic(TOPIC, brokers=5)", "brokers must be a list of str, not 5 (int)"),
    ("admin.delete_topic(None)", "topic must be a str, not None"),
    ("admin.delete_topic('t', cluster=5)", "cluster must be a str, not 5 (int)"),
    ("admin.list_topics(timeout='1')", f"timeout must be {SECONDS}, not '1' (str)"),
    ("admin.topic_route(5)", "topic must be a str, not 5 (int)"),
    ("admin.topic_route('')", "topic='' is blank; give a name"),
    ("admin.topic_settings(None)", "topic must be a str, not None"),
    ("admin.topic_stats(b't')", "topic must be a str, not b't' (bytes)"),
    ("admin.create_group(5)", "group must be a str, not 5 (int)"),
    ("admin.create_group('g', retries=-1)", "retries=-1 is not between 0 and 2147483647"),
    ("admin.create_group('g', retries=1.5)", "retries must be an int, not 1.5 (float)"),
    ("admin.create_group('g', retry_queues='1')", "retry_queues must be an int, not '1' (str)"),
    ("admin.create_group('g', is_enabled='no')", "is_enabled must be True or False, not 'no'"),
    ("admin.create_group('g', can_broadcast=0)", "can_broadcast must be True or False, not 0"),
    ("admin.delete_group(None)", "group must be a str, not None"),
    ("admin.delete_group('g', cluster=5)", "cluster must be a str, not 5 (int)"),
    ("admin.group_offset(5, queue)", "group must be a str, not 5 (int)"),
    ("admin.group_offset('g', 'q')", "queue must be a QueueId, not 'q' (str)"),
    ("admin.set_group_offset('g', queue, -1)", "offset=-1 is not between 0 and"),
    ("admin.set_group_offset('g', queue, '5')", "offset must be an int, not '5' (str)"),
    ("admin.set_group_offset('g', None, 5)", "queue must be a QueueId, not None"),
    ("admin.read_queues(None)", "topic must be a str, not None"),
    ("admin.list_groups(cluster=5)", "cluster must be a str, not 5 (int)"),
    ("admin.list_groups(with_progress=1)", "with_progress must be True or False, not 1 (int)"),
    ("admin.group_settings(None)", "group must be a str, not None"),
    ("admin.update_group('g', retries='3')", "retries must be an int, not '3' (str)"),
    ("admin.delete_group('g', keep_offsets=1)", "keep_offsets must be True or False, not 1"),
    ("admin.delete_group('g', with_topics=1)", "with_topics must be True or False, not 1"),
    ("admin.group_members('g', cluster=5)", "cluster must be a str, not 5 (int)"),
    ("admin.group_members('g', with_filters=1)", "with_filters must be True or False, not 1"),
    ("admin.running_state('g', None)", "client_id must be a str, not None"),
    ("admin.running_state('g', 'c', with_stack=1)", "with_stack must be True or False, not 1"),
    ("admin.consume_directly('g', 5, TOPIC, 'x')", "client_id must be a str, not 5 (int)"),
    ("admin.producer_members(5)", "group must be a str, not 5 (int)"),
    ("admin.group_lag('g', topic=5)", "topic must be a str, not 5 (int)"),
    ("admin.group_lag('g', with_owners=1)", "with_owners must be True or False, not 1 (int)"),
    ("admin.plan_reset('g', None, 'latest')", "topic must be a str, not None"),
    ("admin.plan_reset('g', TOPIC, 'soon')", "to='soon' is not 'earliest', 'latest', a datetime"),
    ("admin.plan_reset('g', TOPIC, [1])", "to=[1] is not 'earliest', 'latest', a datetime"),
    ("admin.reset_offsets('g', TOPIC, -1)", "to=-1 is below 0; use Shift(-1) to go back"),
    ("admin.apply_reset(5)", "reset must be an OffsetReset of plan_reset, not 5 (int)"),
    ("admin.plan_clone('g', 'g', TOPIC)", "source and target are the same group, 'g'"),
    ("admin.clone_offsets(5, 'g', TOPIC)", "group must be a str, not 5 (int)"),
    ("admin.skip_messages(5, TOPIC)", "group must be a str, not 5 (int)"),
    ("admin.group_topics('g', with_retries=1)", "with_retries must be True or False, not 1"),
    ("admin.dead_letters('g', max_count=0)", "max_count=0 is not between 1 and"),
    ("admin.dead_letters('g', begin=5)", "begin must be a datetime, not 5 (int)"),
    ("admin.dead_letters('g', after=5)", "after must be `next` of the page before, not 5 (int)"),
    ("admin.resend_dead_letters(5)", "letters must be a list of DeadMessage, not 5 (int)"),
    ("admin.resend_dead_letters(['x'])", "each of letters must be a DeadMessage of dead_letters()"),
    ("admin.resend_dead_letters([], rate='1')", "rate must be a number of messages per second"),
    ("admin.resend_dead_letters([], rate=0)", "rate=0 is not a number of messages per second"),
    ("admin.resend_dead_letters([], to='x')", "to='x'"),
    ("admin.retry_now('g', None, 'x')", "topic must be a str, not None"),
    ("admin.broker_settings(5)", "broker must be a str, not 5 (int)"),
    ("admin.change_broker_settings(5)", "changes must be a dict of str to str, not 5 (int)"),
    ("admin.change_broker_settings({'a': 1})", "changes['a'] must be a str, not 1 (int)"),
    ("admin.broker_figures(cluster=5)", "cluster must be a str, not 5 (int)"),
    ("admin.clean_up('disk')", "what='disk'"),
    ("admin.wipe_write_permission(None)", "broker must be a str, not None"),
    ("admin.restore_write_permission('')", "broker='' is blank; give a name"),
    ("admin.queue_ranges(None)", "topic must be a str, not None"),
    ("admin.topic_groups(5)", "topic must be a str, not 5 (int)"),
    ("admin.topic_traffic(5)", "topic must be a str, not 5 (int)"),
    # ---- pull consumers ----
    ("jobs.receive(max_count=0)", "max_count=0 is not between 1 and 1024"),
    ("jobs.receive(max_count=1025)", "max_count=1025 is not between 1 and 1024"),
    ("jobs.receive(max_count='1')", "max_count must be an int, not '1' (str)"),
    ("jobs.receive(invisible=0)", f"invisible=0 {ABOVE_0}"),
    ("jobs.receive(timeout=-1)", f"timeout=-1 {FROM_0}"),
    ("jobs.receive()", "nothing is subscribed: give `subscribe`, or call subscribe()"),
    ("jobs.subscribe(5)", "subscribe must be a list of topics, or a dict of topics and filters"),
    ("jobs.subscribe('t', 5)", "tags must be a str or an Sql, not 5 (int)"),
    ("jobs.subscribe('t', timeout=0)", f"timeout=0 {ABOVE_0}"),
    ("jobs.unsubscribe(5)", "topic must be a str, not 5 (int)"),
    ("jobs.unsubscribe('t')", "topic 't' is not subscribed; these are: none"),
    ("jobs.ack(5)", "messages must be a list of messages that receive() returned, not 5 (int)"),
    ("jobs.ack([received])", "each of messages must be a message that receive() returned, not an"),
    ("jobs.close(-1)", f"timeout=-1 {FROM_0}"),
    ("consumer.assign(None)", "what must be a topic, a QueueId, or a list of them, not None"),
    ("consumer.assign(5)", "what must be a topic, a QueueId, or a list of them, not 5 (int)"),
    ("consumer.assign([5])", "what must be a topic, a QueueId, or a list of them, not 5 (int)"),
    ("consumer.assign('')", "topic='' is blank; give a name"),
    ("consumer.assign(QueueId(TOPIC, 'a', None))", "number of queue must be an int, not None"),
    ("consumer.assign(TOPIC, start=-1)", "start=-1 is not an offset, not a datetime, and not one"),
    ("consumer.assign(TOPIC, start='begin')", "start='begin' is not an offset, not a datetime"),
    ("consumer.assign(TOPIC, start=None)", "start=None is not an offset, not a datetime"),
    ("consumer.assign(TOPIC, start=True)", "start=True is not an offset, not a datetime"),
    ("consumer.assign(TOPIC, start=1.5)", "start=1.5 is not an offset, not a datetime"),
    ("consumer.assign(TOPIC, start=datetime(2030, 1, 1))", "has no time zone"),
    ("consumer.assign(TOPIC, tags=None)", "tags must be a str or an Sql, not None"),
    ("consumer.assign(TOPIC, tags=['a'])", "tags must be a str or an Sql, not an object"),
    ("consumer.assign(TOPIC, tags='||')", "tags='||' contains no tag"),
    ("consumer.assign(TOPIC, sql=5)", "sql must be a str, not 5 (int)"),
    ("consumer.assign(TOPIC, sql=' ')", "the SQL expression is empty"),
    ("consumer.assign(TOPIC, sql='a != 1')", "write <> for not equal"),
    ("consumer.assign(TOPIC, tags='a', sql='b > 1')", "exclude each other"),
    ("consumer.assign(TOPIC, tags=Sql('a = 1'), sql='b > 1')", "exclude each other"),
    ("consumer.assign(TOPIC, timeout=0)", f"timeout=0 {ABOVE_0}"),
    ("consumer.seek('q', 0)", "queue must be a QueueId, not 'q' (str)"),
    ("consumer.seek([queue], 0)", "queue must be a QueueId, not an object of type list"),
    ("consumer.seek(queue, -5)", "to=-5 is not an offset, not a datetime, and not one of"),
    ("consumer.seek(queue, 'begin')", "to='begin' is not an offset, not a datetime"),
    ("consumer.seek(queue, 0)", "is not assigned to this consumer"),
    ("consumer.poll(timeout=-1)", f"timeout=-1 {FROM_0}"),
    ("consumer.poll(timeout=None)", f"timeout must be {SECONDS}, not None"),
    ("consumer.poll(timeout=nan)", f"timeout=nan {FROM_0}"),
    ("consumer.poll(timeout=inf)", "timeout=inf is longer than 2000000 seconds, 23 days"),
    ("consumer.poll(max_count=0)", "max_count=0 is less than 1"),
    ("consumer.poll(max_count=-1)", "max_count=-1 is less than 1"),
    ("consumer.poll(max_count='5')", "max_count must be an int, not '5' (str)"),
    ("consumer.poll(max_count=None)", "max_count must be an int, not None"),
    ("consumer.subscribe(TOPIC, on_assigned='x')", "on_assigned='x' cannot be called; give a"),
    ("consumer.subscribe(TOPIC, on_revoked=5)", "on_revoked=5 cannot be called; give a function"),
    ("consumer.poll()", "nothing is assigned: call assign() or subscribe() first"),
    ("consumer.messages(idle_timeout=-1)", f"idle_timeout=-1 {FROM_0}"),
    ("consumer.messages(idle_timeout='1')", f"idle_timeout must be {SECONDS}, not '1' (str)"),
    ("consumer.messages(idle_timeout=nan)", f"idle_timeout=nan {FROM_0}"),
    ("consumer.commit(timeout=-1)", f"timeout=-1 {ABOVE_0}"),
    ("consumer.committed('q')", "queue must be a QueueId, not 'q' (str)"),
    ("consumer.committed([])", "queue must be a QueueId, not an object of type list"),
    ("consumer.position([])", "queue must be a QueueId, not an object of type list"),
    ("consumer.position(queue)", "is not assigned to this consumer"),
    ("consumer.lag(timeout=nan)", f"timeout=nan {ABOVE_0}"),
    ("consumer.close(timeout='soon')", f"timeout must be {SECONDS}, not 'soon' (str)"),
    ("admin.close(timeout=None)", f"timeout must be {SECONDS}, not None"),
    # ---- templates ----
    ("template.convert_and_send(None, 1)", "destination must be a str, not None"),
    ("template.convert_and_send(5, 1)", "destination must be a str, not 5 (int)"),
    ("template.convert_and_send('', 1)", "destination '' names no topic"),
    ("template.convert_and_send('t:a||b', 1)", "tags='a||b' is not one tag"),
    ("template.convert_and_send('t', None)", "a payload of type NoneType cannot be converted"),
    ("template.convert_and_send('t', object())", "a payload of type object cannot be converted"),
    ("template.convert_and_send('t', nan)", "JSON has no nan; use None or a string"),
    ("template.convert_and_send('t', inf)", "JSON has no inf; use None or a string"),
    ("template.convert_and_send('t', {'a': [1, nan]})", "JSON has no nan at ['a'][1]"),
    ("template.convert_and_send('t', [-inf])", "JSON has no -inf at [0]"),
    ("template.convert_and_send('t', 1, keys=[1])", "each of keys must be a str, not 1 (int)"),
    ("template.convert_and_send('t', 1, properties=5)", "properties must be a dict of str to str"),
    ("template.convert_and_send('t', 1, properties={'a': 1})", "properties['a'] must be a str, no"),
    ("template.convert_and_send('t', 1, deliver_in='5')", f"deliver_in must be {SECONDS}, not '5'"),
    ("template.convert_and_send('t', Envelope(1, 5))", "headers must be a dict, not 5 (int)"),
    ("template.convert_and_send('t', Envelope(1, {'a': []}))", "header 'a' = [] is not a text, nu"),
    ("template.convert_and_send('t', Envelope(1, {5: 'a'}))", "each name of headers must be a str"),
    ("template.convert_and_send('t', Envelope(nan))", "JSON has no nan; use None or a string"),
    ("template.convert_and_send('t', 1, timeout=0)", f"timeout=0 {ABOVE_0}"),
    ("template.convert_and_send_oneway(5, 1)", "destination must be a str, not 5 (int)"),
    ("template.convert_and_send_ordered('t', 1, None)", "by_hash takes a str or an int"),
    ("template.convert_and_send_batch('t', 5)", "payloads must be a list of values, not 5 (int)"),
    ("template.convert_and_send_batch('t', 'ab')", "payloads must be a list of values, not 'ab'"),
    ("template.convert_and_send_batch('t', [nan])", "JSON has no nan; use None or a string"),
    ("template.convert_and_send_in_transaction('t', 1, print)", "transactions need a Transaction"),
    ("template.transaction('t', 1)", "transactions need a TransactionProducer, not"),
    ("template.send_and_receive(None, 1, str)", "destination must be a str, not None"),
    ("template.convert_and_reply('x', 1)", "request must be a ReceivedMessage, not 'x' (str)"),
    ("template.receive('x')", "message must be a ReceivedMessage, not 'x' (str)"),
    ("template.message('t', {'a': inf})", "JSON has no inf at ['a']"),
]

#: Values that no field of `ConsumerOptions` takes, except `CONSUMERS_TAKE`.
WRONG_VALUES: Final = (
    *("'60'", "b'60'", "None", "True", "nan", "inf", "-inf", "-1", "[]", "object()"),
    "timedelta(seconds=5)",
)
CONSUMERS_TAKE: Final = {
    *(("retries", "None"), ("offset_store", "None"), ("trace", "True"), ("unit_mode", "True")),
    *(("decode_body", "True"), ("check_subscriptions", "True"), ("messages_max", "None")),
}

#: Methods that only the classes for threads have.
SUBMITS: Final = [
    ("producer.submit('x')", "message must be a Message, not 'x' (str)"),
    ("producer.submit(message, queue=3)", "queue must be a QueueId, a selector such as by_hash"),
    ("producer.submit(message, timeout=nan)", f"timeout=nan {ABOVE_0}"),
    ("producer.submit_batch(5)", "messages must be a list of Message, not 5 (int)"),
    ("producer.submit_batch([b'a'])", "message 0 must be a Message, not b'a' (bytes)"),
    ("producer.submit_batch([message], timeout=0)", f"timeout=0 {ABOVE_0}"),
    ("producer.submit_request('x')", "message must be a Message, not 'x' (str)"),
    ("producer.submit_request(message, timeout=-1)", f"timeout=-1 {ABOVE_0}"),
    ("template.convert_and_submit(5, 1)", "destination must be a str, not 5 (int)"),
    ("template.convert_and_submit('t', 1, on_success=5)", "on_success must be a function, not 5"),
    ("template.convert_and_submit('t', 1, on_failure=5)", "on_failure must be a function, not 5"),
    ("template.convert_and_submit('t', nan)", "JSON has no nan; use None or a string"),
]

_CLIENT_NAMES: Final = (
    *("Client", "Producer", "TransactionProducer", "PullConsumer", "Admin", "MessageTemplate"),
    "SimpleConsumer",
)


def _received(**properties: str) -> ReceivedMessage:
    return ReceivedMessage(
        message_id="id",
        queue=QueueId(TOPIC, "a", 0),
        offset=downrange.QueueOffset(0),
        body=b"x",
        properties=properties,
        offset_id="",
        log_offset=downrange.LogOffset(0),
        flag=0,
        born_at_ms=0,
        born_host="",
        stored_at_ms=0,
    )


def _shared_names() -> dict[str, Any]:
    from downrange.client.converters import TextConverter

    public = {name: getattr(downrange, name) for name in downrange.__all__}
    return public | {
        "datetime": datetime,
        "timedelta": timedelta,
        "now": datetime.now(UTC),
        "nan": math.nan,
        "inf": math.inf,
        "TOPIC": TOPIC,
        "TextConverter": TextConverter,
        "message": Message(TOPIC, b"x"),
        "delayed": Message(TOPIC, b"x", deliver_in=1.0),
        "queue": QueueId(TOPIC, "a", 0),
        "received": _received(),
        "request": _received(CLUSTER="c", CORRELATION_ID="1", REPLY_TO_CLIENT="me"),
    }


def _objects(names: dict[str, Any]) -> dict[str, Any]:
    """Return one object of each class, none of them started."""
    client = names["Client"](NAME_SERVER)
    return {
        "client": client,
        "producer": (producer := names["Producer"](client, group="bad-calls")),
        "transactions": names["TransactionProducer"](client, group="bad-tx", check=print),
        "consumer": names["PullConsumer"](client, group="bad-calls"),
        "jobs": names["SimpleConsumer"](client, group="bad-jobs"),
        "admin": names["Admin"](client),
        "template": names["MessageTemplate"](producer),
    }


def _resources(names: dict[str, Any]) -> list[Any]:
    """Return the objects to start, in this order; they are closed in the opposite one."""
    return [
        names[name] for name in ("client", "producer", "transactions", "consumer", "jobs", "admin")
    ]


class Threads:
    """Makes calls on the classes for threads."""

    def __init__(self) -> None:
        names = _shared_names()
        self.names = names | _objects(names)

    def start(self) -> None:
        for one in _resources(self.names):
            one.start()

    def call(self, text: str) -> object:
        """Make a call, and take the first item of an iterator."""
        result = eval(text, self.names)
        return next(result) if inspect.isgenerator(result) else result

    def close(self) -> None:
        for one in reversed(_resources(self.names)):
            one.close()


class Tasks:
    """Makes the same calls on the classes for asyncio."""

    def __init__(self) -> None:
        names = _shared_names()
        names |= {name: names[f"Async{name}"] for name in _CLIENT_NAMES}
        self.names = names | _objects(names)
        self._runner = asyncio.Runner()

    def start(self) -> None:
        for one in _resources(self.names):
            self._runner.run(one.start())

    def call(self, text: str) -> object:
        """Make a call, await its result, or take the first item of an iterator."""

        async def run() -> object:
            result = eval(text, self.names)
            if inspect.isasyncgen(result):
                return await anext(result)
            return await result if inspect.isawaitable(result) else result

        return self._runner.run(run())

    def close(self) -> None:
        for one in reversed(_resources(self.names)):
            self._runner.run(one.close())
        self._runner.close()


@pytest.fixture(scope="module")
def threads() -> Iterator[Threads]:
    with patch("downrange.client._sync.client.Dialer", AnsweringDialer):
        caller = Threads()
        caller.start()
        yield caller
        caller.close()


@pytest.fixture(scope="module")
def tasks() -> Iterator[Tasks]:
    with patch("downrange.client._async.client.Dialer", AnsweringDialer):
        caller = Tasks()
        caller.start()
        yield caller
        caller.close()


def _error_of(caller: Threads | Tasks, call: str) -> OptionError:
    with pytest.raises(OptionError) as caught:
        caller.call(call)
    return caught.value


def _rows(table: list[tuple[str, str]]) -> list[Any]:
    return [pytest.param(call, words, id=call) for call, words in table]


def test_the_table_has_no_row_twice() -> None:
    calls = [call for call, _ in [*VALUES, *CALLS, *SUBMITS]]
    assert len(set(calls)) == len(calls)
    assert len(calls) >= 214


@pytest.mark.parametrize(("call", "words"), _rows(VALUES))
def test_a_bad_value_is_refused_by_name(call: str, words: str) -> None:
    with pytest.raises(OptionError) as caught:
        eval(call, _shared_names())
    assert words in str(caught.value)


@pytest.mark.parametrize("value", WRONG_VALUES)
@pytest.mark.parametrize("name", [field.name for field in fields(ConsumerOptions)])
def test_every_option_of_consumers_refuses_wrong_values_by_name(name: str, value: str) -> None:
    call, names = f"ConsumerOptions({name}={value})", _shared_names()
    if (name, value) in CONSUMERS_TAKE:
        eval(call, names)
        return
    with pytest.raises(OptionError) as caught:
        eval(call, names)
    assert str(caught.value).startswith((f"{name} ", f"{name}="))


@pytest.mark.parametrize(("call", "words"), _rows(CALLS))
def test_a_bad_call_is_refused_with_the_same_words_by_both_twins(
    call: str, words: str, threads: Threads, tasks: Tasks
) -> None:
    ours, twins = _error_of(threads, call), _error_of(tasks, call)
    assert words in str(ours)
    assert str(twins).replace("an Async", "a ").replace("Async", "") == str(ours)
    assert type(twins) is type(ours)


@pytest.mark.parametrize(("call", "words"), _rows(SUBMITS))
def test_a_bad_submit_is_refused_before_it_returns_a_future(
    call: str, words: str, threads: Threads
) -> None:
    assert words in str(_error_of(threads, call))


@pytest.mark.parametrize("call", ["Credentials('a', b'geheim')", "Proxy('h:1', 'me', b'geheim')"])
def test_a_refused_secret_is_not_shown(call: str) -> None:
    with pytest.raises(OptionError) as caught:
        eval(call, _shared_names())
    assert "geheim" not in str(caught.value)


@pytest.mark.parametrize(
    ("call", "words"),
    _rows(
        [
            ("cluster.stop_broker('a')", "broker must be an int, not 'a' (str)"),
            ("cluster.kill_broker(1)", "broker 1 does not exist: there are 1, counted from 0"),
            ("cluster.restart_broker(None)", "broker must be an int, not None"),
            ("cluster.intercept('send', None)", "code must be an int, not 'send' (str)"),
            ("cluster.intercept(10, 5)", "rule must be an Interception, a function, or None"),
            ("cluster.intercept(10, None, broker=-1)", "broker -1 does not exist"),
        ]
    ),
)
def test_a_bad_call_on_a_cluster_is_refused_by_name(
    call: str, words: str, cluster: Cluster
) -> None:
    with pytest.raises(OptionError) as caught:
        eval(call, {"cluster": cluster})
    assert words in str(caught.value)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster() as cluster:
        yield cluster
