"""The messages of `aperture.flowcontrol.check.v1`, made from the table below when this module is imported.

Names and numbers are those that Aperture's published clients speak, so that one of them needs only another address.
There is nothing to generate and nothing to install but protobuf.  The descriptors live in a pool of their own: a
program may hold Aperture's client too.
"""

from __future__ import annotations

import re
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, duration_pb2, timestamp_pb2
from google.protobuf.message_factory import GetMessageClass

PACKAGE = "aperture.flowcontrol.check.v1"
SERVICE = f"{PACKAGE}.FlowControlService"
METHODS = ("Check", "CacheLookup", "CacheUpsert", "CacheDelete", "FlowEnd")

# A name at the margin opens a message or an enum; a dot nests it.
# Of a type, `*` repeats it, `<T>` maps strings to T, and `|` makes it one of the oneof.
TABLE = """
CheckRequest
  1 string control_point; 2 <string> labels; 3 bool ramp_mode; 4 CacheLookupRequest cache_lookup_request
  5 bool expect_end
CheckResponse
  1 Timestamp start; 2 Timestamp end; 4 *string services; 5 string control_point; 6 *string flow_label_keys
  7 <string> telemetry_flow_labels; 8 CheckResponse.DecisionType decision_type
  9 CheckResponse.RejectReason reject_reason; 10 *ClassifierInfo classifier_infos
  11 *FluxMeterInfo flux_meter_infos; 12 *LimiterDecision limiter_decisions; 13 Duration wait_time
  14 StatusCode denied_response_status_code; 15 CacheLookupResponse cache_lookup_response; 16 bool expect_end
enum CheckResponse.DecisionType
  0 DECISION_TYPE_ACCEPTED; 1 DECISION_TYPE_REJECTED
enum CheckResponse.RejectReason
  0 REJECT_REASON_NONE; 1 REJECT_REASON_RATE_LIMITED; 2 REJECT_REASON_NO_TOKENS; 3 REJECT_REASON_NOT_SAMPLED
  4 REJECT_REASON_NO_MATCHING_RAMP
LimiterDecision
  1 string policy_name; 2 string policy_hash; 3 string component_id; 4 bool dropped
  5 LimiterDecision.LimiterReason reason; 10 StatusCode denied_response_status_code; 11 Duration wait_time
  20 |LimiterDecision.RateLimiterInfo rate_limiter_info; 21 |LimiterDecision.SchedulerInfo load_scheduler_info
  22 |LimiterDecision.SamplerInfo sampler_info; 23 |LimiterDecision.QuotaSchedulerInfo quota_scheduler_info
  24 |LimiterDecision.ConcurrencyLimiterInfo concurrency_limiter_info
  25 |LimiterDecision.ConcurrencySchedulerInfo concurrency_scheduler_info
enum LimiterDecision.LimiterReason
  0 LIMITER_REASON_UNSPECIFIED; 1 LIMITER_REASON_KEY_NOT_FOUND
LimiterDecision.TokensInfo
  1 double remaining; 2 double current; 3 double consumed
LimiterDecision.RateLimiterInfo
  1 string label; 2 LimiterDecision.TokensInfo tokens_info
LimiterDecision.SchedulerInfo
  1 string workload_index; 2 LimiterDecision.TokensInfo tokens_info; 3 double priority
LimiterDecision.SamplerInfo
  1 string label
LimiterDecision.QuotaSchedulerInfo
  1 string label; 2 string workload_index; 3 LimiterDecision.TokensInfo tokens_info; 4 double priority
LimiterDecision.ConcurrencyLimiterInfo
  1 string label; 2 LimiterDecision.TokensInfo tokens_info; 3 string request_id
LimiterDecision.ConcurrencySchedulerInfo
  1 string label; 2 string workload_index; 3 LimiterDecision.TokensInfo tokens_info; 4 double priority
  5 string request_id
FlowEndRequest
  1 string control_point; 2 *InflightRequestRef inflight_requests
FlowEndResponse
  1 *TokenReturnStatus token_return_statuses
InflightRequestRef
  1 string policy_name; 2 string policy_hash; 3 string component_id; 4 string label; 5 string request_id
  6 double tokens
TokenReturnStatus
  1 InflightRequestRef inflight_request_ref; 2 bool returned; 3 string error
CacheLookupRequest
  1 string control_point; 2 string result_cache_key; 3 *string global_cache_keys
CacheDeleteRequest
  1 string control_point; 2 string result_cache_key; 3 *string global_cache_keys
CacheUpsertRequest
  1 string control_point; 2 CacheEntry result_cache_entry; 3 <CacheEntry> global_cache_entries
CacheEntry
  1 string key; 2 bytes value; 3 Duration ttl
CacheLookupResponse
  1 KeyLookupResponse result_cache_response; 2 <KeyLookupResponse> global_cache_responses
CacheUpsertResponse
  1 KeyUpsertResponse result_cache_response; 2 <KeyUpsertResponse> global_cache_responses
CacheDeleteResponse
  1 KeyDeleteResponse result_cache_response; 2 <KeyDeleteResponse> global_cache_responses
KeyLookupResponse
  1 bytes value; 2 CacheLookupStatus lookup_status; 3 CacheOperationStatus operation_status; 4 string error
KeyUpsertResponse
  1 CacheOperationStatus operation_status; 2 string error
KeyDeleteResponse
  1 CacheOperationStatus operation_status; 2 string error
ClassifierInfo
  1 string policy_name; 2 string policy_hash; 3 int64 classifier_index; 5 ClassifierInfo.Error error
enum ClassifierInfo.Error
  0 ERROR_NONE; 1 ERROR_EVAL_FAILED; 2 ERROR_EMPTY_RESULTSET; 3 ERROR_AMBIGUOUS_RESULTSET
  4 ERROR_MULTI_EXPRESSION; 5 ERROR_EXPRESSION_NOT_MAP
FluxMeterInfo
  1 string flux_meter_name
enum CacheLookupStatus
  0 HIT; 1 MISS
enum CacheOperationStatus
  0 SUCCESS; 1 ERROR
enum StatusCode
  0 Empty; 200 OK; 400 BadRequest; 401 Unauthorized; 403 Forbidden; 404 NotFound; 408 RequestTimeout
  429 TooManyRequests; 500 InternalServerError; 502 BadGateway; 503 ServiceUnavailable; 504 GatewayTimeout
"""
_FIELD = re.compile(r"(\d+) (?:([*|]?)(<?)([\w.]+)>? )?(\w+)")
_Field = descriptor_pb2.FieldDescriptorProto
_SCALARS = {
    "bool": _Field.TYPE_BOOL,
    "bytes": _Field.TYPE_BYTES,
    "double": _Field.TYPE_DOUBLE,
    "int64": _Field.TYPE_INT64,
    "string": _Field.TYPE_STRING,
}
_KNOWN = {name: f".google.protobuf.{name}" for name in ("Duration", "Timestamp")}


def _read() -> tuple[dict[str, list[Any]], dict[str, list[Any]]]:
    messages: dict[str, list[Any]] = {}
    enums: dict[str, list[Any]] = {}
    fields: list[Any] = []
    for line in TABLE.strip().splitlines():
        if line.startswith("  "):
            fields += [_FIELD.fullmatch(part.strip()) for part in line.split(";")]
        elif line.startswith("enum "):
            fields = enums[line.removeprefix("enum ")] = []
        else:
            fields = messages[line] = []
    return messages, enums


def _file() -> descriptor_pb2.FileDescriptorProto:
    messages, enums = _read()
    file = descriptor_pb2.FileDescriptorProto(
        name="aperture/flowcontrol/check/v1/check.proto",
        package=PACKAGE,
        syntax="proto3",
        dependency=["google/protobuf/duration.proto", "google/protobuf/timestamp.proto"],
    )
    made: dict[str, Any] = {}

    def typed(field: Any, kind: str) -> None:
        if kind in _SCALARS:
            field.type = _SCALARS[kind]
            return
        field.type = _Field.TYPE_ENUM if kind in enums else _Field.TYPE_MESSAGE
        field.type_name = _KNOWN.get(kind) or f".{PACKAGE}.{kind}"

    for full in messages:
        outer, _, name = full.rpartition(".")
        made[full] = made[outer].nested_type.add() if outer else file.message_type.add()
        made[full].name = name
    for full, matches in messages.items():
        for number, mark, mapped, kind, name in (match.groups() for match in matches):
            field = made[full].field.add(name=name, number=int(number))
            field.label = _Field.LABEL_REPEATED if mark == "*" or mapped else _Field.LABEL_OPTIONAL
            if mark == "|":
                if not made[full].oneof_decl:
                    made[full].oneof_decl.add(name="details")
                field.oneof_index = 0
            if not mapped:
                typed(field, kind)
                continue
            entry = made[full].nested_type.add(name=f"{name.title().replace('_', '')}Entry")
            entry.options.map_entry = True
            entry.field.add(
                name="key", number=1, label=_Field.LABEL_OPTIONAL, type=_Field.TYPE_STRING
            )
            typed(entry.field.add(name="value", number=2, label=_Field.LABEL_OPTIONAL), kind)
            field.type = _Field.TYPE_MESSAGE
            field.type_name = f".{PACKAGE}.{full}.{entry.name}"
    for full, matches in enums.items():
        outer, _, name = full.rpartition(".")
        enum = (made[outer] if outer else file).enum_type.add(name=name)
        for number, _, _, _, value in (match.groups() for match in matches):
            enum.value.add(name=value, number=int(number))
    service = file.service.add(name="FlowControlService")
    for method in METHODS:
        kinds = {"input_type": f"{method}Request", "output_type": f"{method}Response"}
        service.method.add(
            name=method, **{key: f".{PACKAGE}.{kind}" for key, kind in kinds.items()}
        )
    return file


_pool = descriptor_pool.DescriptorPool()
for _known in (duration_pb2, timestamp_pb2):
    _pool.AddSerializedFile(_known.DESCRIPTOR.serialized_pb)
_pool.AddSerializedFile(_file().SerializeToString())


def message(name: str) -> Any:
    """Tell the class of a message, by its name in the package."""
    return GetMessageClass(_pool.FindMessageTypeByName(f"{PACKAGE}.{name}"))


CheckResponse = message("CheckResponse")
FlowEndResponse = message("FlowEndResponse")
CacheLookupResponse = message("CacheLookupResponse")
CacheUpsertResponse = message("CacheUpsertResponse")
CacheDeleteResponse = message("CacheDeleteResponse")

ACCEPTED, REJECTED = 0, 1  # CheckResponse.DecisionType
NO_TOKENS = 2  # CheckResponse.RejectReason
KEY_NOT_FOUND = 1  # LimiterDecision.LimiterReason
HIT, MISS = 0, 1  # CacheLookupStatus
SUCCESS, ERROR = 0, 1  # CacheOperationStatus
