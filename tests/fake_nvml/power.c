/* Power, energy and throttling: values, counters, sample buffers, workload power profiles. */
#include "calls.h"

#include <stdio.h>
#include <string.h>

/* ---- power and limits ---------------------------------------------------------------------- */

/* GA100 and older boards show the power of the moment, later ones its average. */
static int shows_instant_power(const struct gpu_state *gpu)
{
    int ga100 = gpu->compute_major == 8 && gpu->compute_minor == 0;
    return ga100 || gpu->architecture < NVML_DEVICE_ARCH_AMPERE;
}

static double instant_mw(const struct call *call)
{
    return physics_power_w(call->gpu, call->now_ns) * 1e3;
}

static double shown_mw(const struct call *call)
{
    return shows_instant_power(call->gpu) ? instant_mw(call) : call->motion->power_average_w * 1e3;
}

GETTER(nvmlDeviceGetPowerUsage, uint32_t, shown_mw(&call))
GETTER(nvmlDeviceGetTotalEnergyConsumption, uint64_t, call.motion->energy_visible_mj)
GETTER(nvmlDeviceGetPowerManagementMode, uint32_t, 1)
GETTER(nvmlDeviceGetPowerManagementLimit, uint32_t, call.gpu->limit_mw)
GETTER(nvmlDeviceGetPowerManagementDefaultLimit, uint32_t, call.gpu->limit_default_mw)
GETTER(nvmlDeviceGetEnforcedPowerLimit, uint32_t, physics_limit_mw(call.gpu))

nvmlReturn_t nvmlDeviceGetPowerManagementLimitConstraints(nvmlDevice_t device, uint32_t *min_mw,
                                                          uint32_t *max_mw)
{
    struct call call;
    nvmlReturn_t code = device_begin(&call, __func__, device);
    if (code == NVML_SUCCESS) {
        *min_mw = call.gpu->limit_min_mw;
        *max_mw = call.gpu->limit_max_mw;
    }
    return call_end(&call, code);
}

static nvmlReturn_t set_limit(const char *function, nvmlDevice_t device, uint32_t limit_mw,
                              nvmlReturn_t code)
{
    struct call call;
    nvmlReturn_t begun = write_begin(&call, function, device);
    code = begun != NVML_SUCCESS ? begun : code;
    if (code == NVML_SUCCESS &&
        (limit_mw < call.gpu->limit_min_mw || limit_mw > call.gpu->limit_max_mw))
        code = NVML_ERROR_INVALID_ARGUMENT;
    if (code == NVML_SUCCESS && !diverted(&call, LATE_LIMIT, limit_mw, 0))
        call.gpu->limit_mw = limit_mw;
    return write_end(&call, limit_mw, 0, code);
}

nvmlReturn_t nvmlDeviceSetPowerManagementLimit(nvmlDevice_t device, uint32_t limit_mw)
{
    return set_limit(__func__, device, limit_mw, NVML_SUCCESS);
}

nvmlReturn_t nvmlDeviceSetPowerManagementLimit_v2(nvmlDevice_t device, nvmlPowerValue_v2_t *value)
{
    nvmlReturn_t code = NVML_SUCCESS;
    if (value == NULL || value->version != NVML_POWER_VALUE_V2)
        code = NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    else if (value->powerScope != 0) /* the GPU; there is no module here */
        code = NVML_ERROR_NOT_SUPPORTED;
    return set_limit(__func__, device, value == NULL ? 0 : value->powerValueMw, code);
}

/* ---- field values ---------------------------------------------------------------------------- */

static uint64_t reason_ns(const struct call *call, int reason)
{
    return call->motion->reason_ns[reason];
}

/* One link of many, or all of them where the scope says so. */
static nvmlReturn_t link_share(const struct call *call, uint32_t scope, double bytes, double unit,
                               nvmlFieldValue_t *field)
{
    uint32_t links = call->gpu->nvlink_count;
    if (links == 0)
        return NVML_ERROR_NOT_SUPPORTED;
    if (scope != UINT32_MAX && scope >= links)
        return NVML_ERROR_INVALID_ARGUMENT;
    double share = scope == UINT32_MAX ? bytes : bytes / links;
    field->valueType = NVML_VALUE_TYPE_UNSIGNED_LONG_LONG;
    field->value.ullVal = (unsigned long long)(share / unit);
    return NVML_SUCCESS;
}

/* Counters in 64 bits; -1 for a field that is none of them. */
static int64_t counter_value(const struct call *call, uint32_t field)
{
    const struct motion *motion = call->motion;
    switch (field) {
    case NVML_FI_DEV_PERF_POLICY_POWER: return (int64_t)reason_ns(call, REASON_POWER_CAP);
    case NVML_FI_DEV_PERF_POLICY_THERMAL:
    case NVML_FI_DEV_CLOCKS_EVENT_REASON_SW_THERM_SLOWDOWN:
        return (int64_t)reason_ns(call, REASON_SW_THERMAL);
    case NVML_FI_DEV_PERF_POLICY_SYNC_BOOST:
    case NVML_FI_DEV_PERF_POLICY_BOARD_LIMIT:
    case NVML_FI_DEV_PERF_POLICY_RELIABILITY: return 0;
    case NVML_FI_DEV_PERF_POLICY_TOTAL_APP_CLOCKS:
        return (int64_t)reason_ns(call, REASON_APPLICATION_CLOCKS);
    case NVML_FI_DEV_CLOCKS_EVENT_REASON_HW_THERM_SLOWDOWN:
        return (int64_t)reason_ns(call, REASON_HW_THERMAL);
    case NVML_FI_DEV_CLOCKS_EVENT_REASON_HW_POWER_BRAKE_SLOWDOWN:
        return (int64_t)reason_ns(call, REASON_POWER_BRAKE);
    case NVML_FI_DEV_TOTAL_ENERGY_CONSUMPTION: return (int64_t)motion->energy_visible_mj;
    case NVML_FI_DEV_PCIE_COUNT_TX_BYTES: return (int64_t)motion->pcie_tx_bytes;
    case NVML_FI_DEV_PCIE_COUNT_RX_BYTES: return (int64_t)motion->pcie_rx_bytes;
    default: return -1;
    }
}

/* Errors of all links together; -1 for a field that is none of them. */
static int64_t link_errors(const struct call *call, uint32_t field)
{
    const uint64_t *errors = call->gpu->nvlink_errors;
    switch (field) {
    case NVML_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL: return (int64_t)errors[0];
    case NVML_FI_DEV_NVLINK_CRC_DATA_ERROR_COUNT_TOTAL: return (int64_t)errors[1];
    case NVML_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL: return (int64_t)errors[2];
    case NVML_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL: return (int64_t)errors[3];
    default: return -1;
    }
}

static nvmlReturn_t number_value(const struct call *call, uint32_t field, uint32_t *value)
{
    const struct gpu_state *gpu = call->gpu;
    double celsius = call->motion->temperature_celsius;
    switch (field) {
    case NVML_FI_DEV_POWER_AVERAGE:
        if (shows_instant_power(gpu))
            return NVML_ERROR_NOT_SUPPORTED;
        *value = (uint32_t)(call->motion->power_average_w * 1e3);
        return NVML_SUCCESS;
    case NVML_FI_DEV_POWER_INSTANT: *value = (uint32_t)instant_mw(call); break;
    case NVML_FI_DEV_POWER_MIN_LIMIT: *value = gpu->limit_min_mw; break;
    case NVML_FI_DEV_POWER_MAX_LIMIT: *value = gpu->limit_max_mw; break;
    case NVML_FI_DEV_POWER_DEFAULT_LIMIT: *value = gpu->limit_default_mw; break;
    case NVML_FI_DEV_POWER_CURRENT_LIMIT: *value = physics_limit_mw(gpu); break;
    case NVML_FI_DEV_POWER_REQUESTED_LIMIT: *value = gpu->limit_mw; break;
    case NVML_FI_DEV_MEMORY_TEMP: *value = (uint32_t)celsius + 8; break; /* assumed */
    case NVML_FI_DEV_NVLINK_LINK_COUNT: *value = gpu->nvlink_count; break;
    case NVML_FI_DEV_TEMPERATURE_SHUTDOWN_TLIMIT:
        *value = (uint32_t)(int32_t)(SLOWDOWN_CELSIUS - SHUTDOWN_CELSIUS);
        break; /* these count downwards from the slowdown */
    case NVML_FI_DEV_TEMPERATURE_SLOWDOWN_TLIMIT:
        *value = (uint32_t)(int32_t)(SLOWDOWN_CELSIUS - HOT_CELSIUS);
        break;
    case NVML_FI_DEV_TEMPERATURE_GPU_MAX_TLIMIT: *value = 0; break;
    default: return NVML_ERROR_NOT_SUPPORTED;
    }
    return NVML_SUCCESS;
}

static nvmlReturn_t field_value(struct call *call, nvmlFieldValue_t *field)
{
    const struct motion *motion = call->motion;
    char name[NAME_MAX_BYTES];
    snprintf(name, sizeof name, "field:%u", field->fieldId);
    nvmlReturn_t code = part_code(call, name);
    if (code != NVML_SUCCESS)
        return code;
    uint32_t id = field->fieldId, scope = field->scopeId;
    field->value.ullVal = 0;
    switch (id) {
    case NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX:
    case NVML_FI_DEV_NVLINK_THROUGHPUT_RAW_TX:
        return link_share(call, scope, motion->nvlink_tx_bytes, 1024.0, field);
    case NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX:
    case NVML_FI_DEV_NVLINK_THROUGHPUT_RAW_RX:
        return link_share(call, scope, motion->nvlink_rx_bytes, 1024.0, field);
    case NVML_FI_DEV_NVLINK_COUNT_XMIT_BYTES:
    case NVML_FI_DEV_NVLINK_COUNT_RCV_BYTES:
        if (call->gpu->architecture < NVML_DEVICE_ARCH_BLACKWELL)
            return NVML_ERROR_NOT_SUPPORTED;
        return link_share(call, scope, id == NVML_FI_DEV_NVLINK_COUNT_XMIT_BYTES
                                           ? motion->nvlink_tx_bytes : motion->nvlink_rx_bytes,
                          1.0, field);
    }
    if (scope == 1 && call->gpu->has_module && id == NVML_FI_DEV_POWER_INSTANT) {
        field->valueType = NVML_VALUE_TYPE_UNSIGNED_INT;
        field->value.uiVal = (uint32_t)(instant_mw(call) + call->gpu->module_w * 1e3);
        return NVML_SUCCESS;
    }
    if (scope != 0)
        return NVML_ERROR_NOT_SUPPORTED;
    int64_t count = link_errors(call, id);
    if (count >= 0 && call->gpu->nvlink_count == 0)
        return NVML_ERROR_NOT_SUPPORTED;
    if (count < 0)
        count = counter_value(call, id);
    if (count >= 0) {
        field->valueType = NVML_VALUE_TYPE_UNSIGNED_LONG_LONG;
        field->value.ullVal = (unsigned long long)count;
        return NVML_SUCCESS;
    }
    field->valueType = NVML_VALUE_TYPE_UNSIGNED_INT;
    return number_value(call, id, &field->value.uiVal);
}

nvmlReturn_t nvmlDeviceGetTotalEccErrors(nvmlDevice_t device, uint32_t type, uint32_t scope,
                                         unsigned long long *count)
{
    struct call call;
    nvmlReturn_t code = device_begin(&call, __func__, device);
    if (code == NVML_SUCCESS && (type > 1 || scope > 1 || count == NULL))
        code = NVML_ERROR_INVALID_ARGUMENT;
    if (code == NVML_SUCCESS)
        *count = call.gpu->ecc_errors[type][scope];
    return call_end(&call, code);
}

/* Microseconds of the wall clock, as timestamps are; steps of that clock are not imitated. */
static uint64_t timestamp_us(const struct state *state, uint64_t at_ns)
{
    return (at_ns + (uint64_t)state->epoch_offset_ns) / 1000;
}

nvmlReturn_t nvmlDeviceGetFieldValues(nvmlDevice_t device, int count, nvmlFieldValue_t *fields)
{
    struct call call;
    nvmlReturn_t code = device_begin(&call, __func__, device);
    if (code == NVML_SUCCESS && (count <= 0 || fields == NULL))
        code = NVML_ERROR_INVALID_ARGUMENT;
    for (int i = 0; code == NVML_SUCCESS && i < count; i++) {
        fields[i].timestamp = (int64_t)timestamp_us(call.state, call.now_ns);
        fields[i].latencyUsec = 0;
        fields[i].nvmlReturn = field_value(&call, &fields[i]);
    }
    return call_end(&call, code);
}

nvmlReturn_t nvmlDeviceGetViolationStatus(nvmlDevice_t device, uint32_t policy,
                                          nvmlViolationTime_t *violation)
{
    struct call call;
    nvmlReturn_t code = device_begin(&call, __func__, device);
    if (code == NVML_SUCCESS && violation == NULL)
        code = NVML_ERROR_INVALID_ARGUMENT;
    int64_t counted_ns = code ? 0 : counter_value(&call, NVML_FI_DEV_PERF_POLICY_POWER + policy);
    if (policy == NVML_PERF_POLICY_TOTAL_APP_CLOCKS)
        counted_ns = code ? 0 : counter_value(&call, NVML_FI_DEV_PERF_POLICY_TOTAL_APP_CLOCKS);
    else if (policy > NVML_PERF_POLICY_RELIABILITY)
        counted_ns = -1;
    if (code == NVML_SUCCESS && counted_ns < 0)
        code = NVML_ERROR_NOT_SUPPORTED;
    if (code == NVML_SUCCESS) {
        violation->referenceTime = timestamp_us(call.state, call.now_ns);
        violation->violationTime = (uint64_t)counted_ns;
    }
    return call_end(&call, code);
}

/* ---- sample buffers ---------------------------------------------------------------------------- */

static nvmlReturn_t sample_value(const struct sample *sample, uint32_t type, uint32_t *value)
{
    switch (type) {
    case NVML_TOTAL_POWER_SAMPLES: *value = sample->power_mw; break;
    case NVML_GPU_UTILIZATION_SAMPLES: *value = sample->busy_percent; break;
    case NVML_MEMORY_UTILIZATION_SAMPLES: *value = sample->busy_percent * 2 / 5; break;
    case NVML_ENC_UTILIZATION_SAMPLES:
    case NVML_DEC_UTILIZATION_SAMPLES: *value = 0; break;
    case NVML_PROCESSOR_CLK_SAMPLES: *value = sample->clock_mhz; break;
    case NVML_MEMORY_CLK_SAMPLES: *value = sample->memory_mhz; break;
    default: return NVML_ERROR_NOT_SUPPORTED;
    }
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetSamples(nvmlDevice_t device, uint32_t type, unsigned long long last_us,
                                  uint32_t *value_type, uint32_t *count, nvmlSample_t *samples)
{
    struct call call;
    nvmlReturn_t code = device_begin(&call, __func__, device);
    uint32_t value = 0, room = 0, have = 0;
    if (code == NVML_SUCCESS && (value_type == NULL || count == NULL))
        code = NVML_ERROR_INVALID_ARGUMENT;
    if (code == NVML_SUCCESS)
        code = sample_value(&call.gpu->samples[0], type, &value);
    if (code == NVML_SUCCESS && call.gpu->mig_enabled && type >= NVML_GPU_UTILIZATION_SAMPLES &&
        type <= NVML_DEC_UTILIZATION_SAMPLES)
        code = NVML_ERROR_NOT_SUPPORTED;
    if (code != NVML_SUCCESS)
        return call_end(&call, code);
    *value_type = NVML_VALUE_TYPE_UNSIGNED_INT;
    room = samples == NULL ? 0 : *count;
    uint64_t total = call.motion->samples_total;
    for (uint64_t i = total > SAMPLES_MAX ? total - SAMPLES_MAX : 0; i < total && have < room; i++) {
        const struct sample *sample = &call.gpu->samples[i % SAMPLES_MAX];
        uint64_t at_us = timestamp_us(call.state, sample->at_ns);
        if (at_us <= last_us)
            continue;
        sample_value(sample, type, &value);
        samples[have++] = (nvmlSample_t){at_us, {.ullVal = value}};
    }
    *count = samples == NULL ? SAMPLES_MAX : have;
    return call_end(&call, samples != NULL && have == 0 ? NVML_ERROR_NOT_FOUND : NVML_SUCCESS);
}

/* ---- workload power profiles ------------------------------------------------------------------- */

static nvmlReturn_t profiles_begin(struct call *call, const char *function, nvmlDevice_t device,
                                   int version_fits)
{
    nvmlReturn_t code = device_begin(call, function, device);
    if (code == NVML_SUCCESS && call->gpu->profiles_supported == 0)
        code = NVML_ERROR_NOT_SUPPORTED;
    if (code == NVML_SUCCESS && !version_fits)
        code = NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    return code;
}

nvmlReturn_t nvmlDeviceWorkloadPowerProfileGetProfilesInfo(nvmlDevice_t device,
                                                           nvmlProfilesInfo_t *info)
{
    struct call call;
    nvmlReturn_t code = profiles_begin(&call, __func__, device,
                                       info != NULL && info->version == NVML_PROFILES_INFO_V1);
    if (code != NVML_SUCCESS)
        return call_end(&call, code);
    memset(&info->perfProfilesMask, 0, sizeof *info - sizeof info->version);
    info->perfProfilesMask.mask[0] = call.gpu->profiles_supported;
    for (uint32_t i = 0; i < 32; i++)
        if (call.gpu->profiles_supported >> i & 1)
            info->perfProfile[i] = (nvmlProfileInfo_t){0x0100002cU, i, i, {{0}}};
    return call_end(&call, code);
}

nvmlReturn_t nvmlDeviceWorkloadPowerProfileGetCurrentProfiles(nvmlDevice_t device,
                                                              nvmlProfilesCurrent_t *now)
{
    struct call call;
    nvmlReturn_t code = profiles_begin(&call, __func__, device,
                                       now != NULL && now->version == NVML_PROFILES_CURRENT_V1);
    if (code != NVML_SUCCESS)
        return call_end(&call, code);
    memset(&now->perfProfilesMask, 0, sizeof *now - sizeof now->version);
    now->perfProfilesMask.mask[0] = call.gpu->profiles_supported;
    now->requestedProfilesMask.mask[0] = call.gpu->profiles_requested;
    now->enforcedProfilesMask.mask[0] = call.gpu->profiles_enforced;
    return call_end(&call, code);
}

enum { PROFILES_CLEAR, PROFILES_ADD, PROFILES_REPLACE };

static nvmlReturn_t write_profiles(const char *function, nvmlDevice_t device, uint32_t operation,
                                   const nvmlProfilesRequested_t *asked, int version_fits)
{
    struct call call;
    nvmlReturn_t code = write_begin(&call, function, device);
    uint32_t mask = asked == NULL ? 0 : asked->profilesMask.mask[0];
    if (code == NVML_SUCCESS && call.gpu->profiles_supported == 0)
        code = NVML_ERROR_NOT_SUPPORTED;
    if (code == NVML_SUCCESS && !version_fits)
        code = NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    if (code == NVML_SUCCESS &&
        (operation > PROFILES_REPLACE || (mask & ~call.gpu->profiles_supported) != 0))
        code = NVML_ERROR_INVALID_ARGUMENT;
    if (code == NVML_SUCCESS) {
        uint32_t before = operation == PROFILES_REPLACE ? 0 : call.gpu->profiles_requested;
        uint32_t wanted = operation == PROFILES_CLEAR ? before & ~mask : before | mask;
        call.gpu->profiles_requested = call.gpu->profiles_enforced = wanted;
    }
    return write_end(&call, operation, mask, code);
}

nvmlReturn_t nvmlDeviceWorkloadPowerProfileSetRequestedProfiles(nvmlDevice_t device,
                                                                nvmlProfilesRequested_t *asked)
{
    return write_profiles(__func__, device, PROFILES_ADD, asked,
                          asked != NULL && asked->version == NVML_PROFILES_REQUESTED_V1);
}

nvmlReturn_t nvmlDeviceWorkloadPowerProfileClearRequestedProfiles(nvmlDevice_t device,
                                                                  nvmlProfilesRequested_t *asked)
{
    return write_profiles(__func__, device, PROFILES_CLEAR, asked,
                          asked != NULL && asked->version == NVML_PROFILES_REQUESTED_V1);
}

nvmlReturn_t nvmlDeviceWorkloadPowerProfileUpdateProfiles_v1(nvmlDevice_t device,
                                                             nvmlProfilesRequested_t *asked)
{
    return write_profiles(__func__, device, asked == NULL ? PROFILES_CLEAR : asked->version,
                          asked, asked != NULL);
}
