"""Which Java class stands behind each of our header and body types."""

from __future__ import annotations

from typing import TYPE_CHECKING

from downrange.wire import bodies, headers

if TYPE_CHECKING:
    from downrange.wire.bodies import Body
    from downrange.wire.fields import Header

#: Headers whose class only 5.x has.
ONLY_5X: set[type[Header]] = {
    headers.RecallRequest,
    headers.RecallReply,
    headers.TopicConfigRequest,
    headers.AllTopicsRequest,
    headers.GroupConfigRequest,
    headers.AllGroupsRequest,
    headers.AllGroupsReply,
    headers.BrokerHeartbeatRequest,
    headers.BrokerMembersRequest,
    headers.RegisterTopicRequest,
}

#: Fields that travel beside the header class, set by hand in the Java code.
BESIDE_THE_CLASS = {"MSG_REGION", "TRACE_ON", "__ZONE_NAME", "__ZONE_MODE", "_UNIQUE_KEY_QUERY"}

HEADERS: dict[type[Header], str] = {
    headers.SendRequest: "SendMessageRequestHeader",
    headers.SendRequestV2: "SendMessageRequestHeaderV2",
    headers.SendReply: "SendMessageResponseHeader",
    headers.SendBackRequest: "ConsumerSendMsgBackRequestHeader",
    headers.RecallRequest: "RecallMessageRequestHeader",
    headers.RecallReply: "RecallMessageResponseHeader",
    headers.PushReplyRequest: "ReplyMessageRequestHeader",
    headers.PullRequest: "PullMessageRequestHeader",
    headers.PullReply: "PullMessageResponseHeader",
    headers.GroupOffsetRequest: "QueryConsumerOffsetRequestHeader",
    headers.CommitOffsetRequest: "UpdateConsumerOffsetRequestHeader",
    headers.OffsetByTimeRequest: "SearchOffsetRequestHeader",
    headers.MaxOffsetRequest: "GetMaxOffsetRequestHeader",
    headers.MinOffsetRequest: "GetMinOffsetRequestHeader",
    headers.OffsetReply: "QueryConsumerOffsetResponseHeader",
    headers.EarliestTimeRequest: "GetEarliestMsgStoretimeRequestHeader",
    headers.EarliestTimeReply: "GetEarliestMsgStoretimeResponseHeader",
    headers.QueryByKeyRequest: "QueryMessageRequestHeader",
    headers.QueryReply: "QueryMessageResponseHeader",
    headers.ViewRequest: "ViewMessageRequestHeader",
    headers.EndTransactionRequest: "EndTransactionRequestHeader",
    headers.CheckTransactionRequest: "CheckTransactionStateRequestHeader",
    headers.UnregisterClientRequest: "UnregisterClientRequestHeader",
    headers.GroupMembersRequest: "GetConsumerListByGroupRequestHeader",
    headers.MembersChangedRequest: "NotifyConsumerIdsChangedRequestHeader",
    headers.RunningStateRequest: "GetConsumerRunningInfoRequestHeader",
    headers.ConsumeDirectlyRequest: "ConsumeMessageDirectlyResultRequestHeader",
    headers.ResetOffsetRequest: "ResetOffsetRequestHeader",
    headers.ConsumerStatusRequest: "GetConsumerStatusRequestHeader",
    headers.CreateTopicRequest: "CreateTopicRequestHeader",
    headers.DeleteTopicRequest: "DeleteTopicRequestHeader",
    headers.TopicConfigRequest: "GetTopicConfigRequestHeader",
    headers.AllTopicsRequest: "GetAllTopicConfigRequestHeader",
    headers.AllTopicsReply: "GetAllTopicConfigResponseHeader",
    headers.TopicStatsRequest: "GetTopicStatsInfoRequestHeader",
    headers.ConsumeStatsRequest: "GetConsumeStatsRequestHeader",
    headers.ConsumerConnectionsRequest: "GetConsumerConnectionListRequestHeader",
    headers.ProducerConnectionsRequest: "GetProducerConnectionListRequestHeader",
    headers.DeleteGroupRequest: "DeleteSubscriptionGroupRequestHeader",
    headers.GroupConfigRequest: "GetSubscriptionGroupConfigRequestHeader",
    headers.AllGroupsRequest: "GetAllSubscriptionGroupRequestHeader",
    headers.AllGroupsReply: "GetAllSubscriptionGroupResponseHeader",
    headers.TopicConsumersRequest: "QueryTopicConsumeByWhoRequestHeader",
    headers.ConsumeTimeSpanRequest: "QueryConsumeTimeSpanRequestHeader",
    headers.BrokerConfigReply: "GetBrokerConfigResponseHeader",
    headers.RouteRequest: "GetRouteInfoRequestHeader",
    headers.RegisterBrokerRequest: "RegisterBrokerRequestHeader",
    headers.RegisterBrokerReply: "RegisterBrokerResponseHeader",
    headers.UnregisterBrokerRequest: "UnRegisterBrokerRequestHeader",
    headers.QueryDataVersionRequest: "QueryDataVersionRequestHeader",
    headers.QueryDataVersionReply: "QueryDataVersionResponseHeader",
    headers.BrokerHeartbeatRequest: "BrokerHeartbeatRequestHeader",
    headers.BrokerMembersRequest: "GetBrokerMemberGroupRequestHeader",
    headers.ClusterTopicsRequest: "GetTopicsByClusterRequestHeader",
    headers.DeleteRouteRequest: "DeleteTopicFromNamesrvRequestHeader",
    headers.RegisterTopicRequest: "RegisterTopicRequestHeader",
    headers.WipeWritePermissionRequest: "WipeWritePermOfBrokerRequestHeader",
    headers.WipeWritePermissionReply: "WipeWritePermOfBrokerResponseHeader",
    headers.AddWritePermissionRequest: "AddWritePermOfBrokerRequestHeader",
    headers.AddWritePermissionReply: "AddWritePermOfBrokerResponseHeader",
    headers.PutKeyValueRequest: "PutKVConfigRequestHeader",
    headers.GetKeyValueRequest: "GetKVConfigRequestHeader",
    headers.GetKeyValueReply: "GetKVConfigResponseHeader",
    headers.DeleteKeyValueRequest: "DeleteKVConfigRequestHeader",
    headers.ListKeyValuesRequest: "GetKVListByNamespaceRequestHeader",
}

#: HeartbeatReply is no class in Java: the broker puts its two fields in by hand.
WITHOUT_CLASS: set[type[Header]] = {headers.HeartbeatReply}

BODIES: dict[type[Body], str] = {
    bodies.RouteBody: "TopicRouteData",
    bodies.ClusterBody: "ClusterInfo",
    bodies.TopicNamesBody: "TopicList",
    bodies.KeyValueBody: "KVTable",
    bodies.DataVersion: "DataVersion",
    bodies.TopicConfig: "TopicConfig",
    bodies.TopicTableBody: "TopicConfigSerializeWrapper",
    bodies.RegisterBrokerBody: "RegisterBrokerBody",
    bodies.Subscription: "SubscriptionData",
    bodies.HeartbeatBody: "HeartbeatData",
    bodies.CheckClientBody: "CheckClientRequestBody",
    bodies.GroupMembersBody: "GetConsumerListByGroupResponseBody",
    bodies.LockQueuesBody: "LockBatchRequestBody",
    bodies.LockedQueuesBody: "LockBatchResponseBody",
    bodies.ProducerConnectionsBody: "ProducerConnection",
    bodies.ConsumerConnectionsBody: "ConsumerConnection",
    bodies.ResetOffsetBody: "ResetOffsetBody",
    bodies.ConsumerStatusBody: "GetConsumerStatusBody",
    bodies.ConsumeDirectlyBody: "ConsumeMessageDirectlyResult",
    bodies.GroupConfig: "SubscriptionGroupConfig",
    bodies.GroupTableBody: "SubscriptionGroupWrapper",
    bodies.TopicStatsBody: "TopicStatsTable",
    bodies.ConsumeStatsBody: "ConsumeStats",
}
