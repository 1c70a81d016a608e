// A device that torch takes for an accelerator: its tensors lie in this machine's memory and the CPU computes on them.
//
// torch's PrivateUse1 slot (https://docs.pytorch.org/tutorials/advanced/privateuseone.html) is the one that torch_npu,
// others fill; torch itself fills CUDA where it is built for NVIDIA's GPUs. STANDIN_SLOT names the one to be filled,
// STANDIN_FOR_<slot> is defined. What is here is what torch asks of such a device: memory, views, copies, a device
// guard, hooks for torch.accelerator. Every other operation goes through torch's own fall-back to the CPU.

#include <ATen/EmptyTensor.h>
#include <ATen/autocast_mode.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <ATen/native/CPUFallback.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/resize_native.h>
#include <ATen/ops/set_native.h>
#include <ATen/ops/unfold_native.h>
#include <ATen/ops/view_native.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/_scaled_dot_product_attention_math.h>
#include <ATen/CPUGeneratorImpl.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/csrc/distributed/c10d/reducer_timer.hpp>
#include <torch/extension.h>
#include <torch/library.h>

#include <atomic>
#include <cstdlib>
#include <cstring>

// torch's macros paste names together, so the slot's must be put in before they see it.
#define FILL_GUARD(slot) C10_REGISTER_GUARD_IMPL(slot, Guard)
#define FILL(slot, m) TORCH_LIBRARY_IMPL(aten, slot, m)
#define FILL_REST(slot, m) TORCH_LIBRARY_IMPL(_, slot, m)

#if defined(STANDIN_FOR_CUDA)
#define STANDIN_HOOKS at::CUDAHooksInterface
#else
#define STANDIN_HOOKS at::PrivateUse1HooksInterface
#endif

namespace {

constexpr auto kDevice = c10::DeviceType::STANDIN_SLOT;
constexpr auto kKey = c10::DispatchKey::STANDIN_SLOT;
constexpr int kMost = 16;
thread_local c10::DeviceIndex current = 0;
std::atomic<int64_t> operations[kMost];
std::atomic<int64_t> held[kMost];
std::atomic<int64_t> highest[kMost];

int64_t number_from(const char* name, int64_t otherwise) {
  const char* text = std::getenv(name);
  return text == nullptr ? otherwise : std::atoll(text);
}

c10::DeviceIndex device_count() {
  static const auto count = static_cast<c10::DeviceIndex>(number_from("STANDIN_DEVICES", 2));
  return count;
}

// ---- memory -------------------------------------------------------------------------------------------------------

struct Block {
  void* data;
  size_t bytes;
  c10::DeviceIndex device;
};

void release(void* context) {
  auto* block = static_cast<Block*>(context);
  held[block->device] -= static_cast<int64_t>(block->bytes);
  std::free(block->data);
  delete block;
}

struct Memory final : c10::Allocator {
  c10::DataPtr allocate(size_t bytes) override {
    static const int64_t limit = number_from("STANDIN_MEMORY", INT64_MAX);
    const auto device = current;
    if (held[device] + static_cast<int64_t>(bytes) > limit) {
      TORCH_CHECK_WITH(OutOfMemoryError, false, "out of memory. Tried to allocate ", bytes, " bytes");
    }
    void* data = bytes == 0 ? nullptr : std::aligned_alloc(64, (bytes + 63) / 64 * 64);
    held[device] += static_cast<int64_t>(bytes);
    if (held[device] > highest[device]) highest[device] = held[device].load();
    return {data, new Block{data, bytes, device}, &release, c10::Device(kDevice, device)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return nullptr; }
  void copy_data(void* to, const void* from, std::size_t count) const override { default_copy_data(to, from, count); }
};

Memory memory;
REGISTER_ALLOCATOR(kDevice, &memory);

// ---- the current device -------------------------------------------------------------------------------------------

struct Guard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return kDevice; }
  c10::Device exchangeDevice(c10::Device device) const override {
    const auto before = getDevice();
    setDevice(device);
    return before;
  }
  c10::Device getDevice() const override { return {kDevice, current}; }
  void setDevice(c10::Device device) const override {
    TORCH_CHECK(device.index() < device_count(), device.str(), " is not there");
    uncheckedSetDevice(device);
  }
  void uncheckedSetDevice(c10::Device device) const noexcept override {
    if (device.has_index()) current = device.index();
  }
  c10::Stream getStream(c10::Device device) const override { return c10::Stream(c10::Stream::DEFAULT, device); }
  c10::Stream getDefaultStream(c10::Device device) const override { return getStream(device); }
  c10::Stream exchangeStream(c10::Stream stream) const override { return stream; }
  c10::DeviceIndex deviceCount() const noexcept override { return device_count(); }
  void record(void** event, const c10::Stream&, const c10::DeviceIndex, const c10::EventFlag) const override {
    *event = nullptr;
  }
  void block(void*, const c10::Stream&) const override {}
  bool queryEvent(void*) const override { return true; }
  bool queryStream(const c10::Stream&) const override { return true; }
  void synchronizeStream(const c10::Stream&) const override {}
  void synchronizeEvent(void*) const override {}
  void synchronizeDevice(const c10::DeviceIndex) const override {}
};

FILL_GUARD(STANDIN_SLOT);

struct Hooks final : STANDIN_HOOKS {
  template <class... Arguments>
  explicit Hooks(Arguments&&...) {}  // torch's registry passes some, or none, by its version
#if defined(STANDIN_FOR_CUDA)
  bool hasCUDA() const override { return true; }
#endif
  void init() const override {}
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return device_count() > 0; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  c10::DeviceIndex deviceCount() const override { return device_count(); }
  void setCurrentDevice(c10::DeviceIndex index) const override { current = index; }
  c10::DeviceIndex getCurrentDevice() const override { return current; }
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex index) const override { return std::exchange(current, index); }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex index) const override { return exchangeDevice(index); }
  const at::Generator& getDefaultGenerator(c10::DeviceIndex) const override {
    return at::detail::getDefaultCPUGenerator();
  }
  at::Generator getNewGenerator(c10::DeviceIndex) const override { return at::detail::createCPUGenerator(); }
  at::Allocator* getPinnedMemoryAllocator() const override { return c10::GetAllocator(c10::kCPU); }
};

// ---- operations ---------------------------------------------------------------------------------------------------

c10::Device device_of(std::optional<at::Device> asked) {
  return asked.has_value() && asked->has_index() ? *asked : c10::Device(kDevice, current);
}

at::Tensor empty(c10::SymIntArrayRef size, std::optional<at::ScalarType> type, std::optional<at::Layout>,
                 std::optional<at::Device> device, std::optional<bool>, std::optional<at::MemoryFormat> format) {
  const c10::DeviceGuard guard(device_of(device));
  return at::detail::empty_generic(C10_AS_INTARRAYREF_SLOW(size), &memory, c10::DispatchKeySet(kKey),
                                   c10::dtype_or_default(type), format);
}

at::Tensor empty_strided(c10::SymIntArrayRef size, c10::SymIntArrayRef stride, std::optional<at::ScalarType> type,
                         std::optional<at::Layout>, std::optional<at::Device> device, std::optional<bool>) {
  const c10::DeviceGuard guard(device_of(device));
  return at::detail::empty_strided_generic(C10_AS_INTARRAYREF_SLOW(size), C10_AS_INTARRAYREF_SLOW(stride), &memory,
                                           c10::DispatchKeySet(kKey), c10::dtype_or_default(type));
}

// The same memory as a tensor of the CPU.
at::Tensor on_cpu(const at::Tensor& tensor) {
  if (tensor.is_cpu()) return tensor;
  auto held = tensor.detach();
  return at::from_blob(held.data_ptr(), held.sizes(), held.strides(), [held](void*) {},
                       at::TensorOptions().dtype(tensor.dtype()));
}

at::Tensor copy_from(const at::Tensor& self, const at::Tensor& to, bool) {
  on_cpu(to).copy_(on_cpu(self));
  return to;
}

at::Tensor copy_from_and_resize(const at::Tensor& self, const at::Tensor& to) {
  to.resize_(self.sizes());
  return copy_from(self, to, false);
}

at::Tensor view(const at::Tensor& self, c10::SymIntArrayRef size) {
  return at::native::view(self, C10_AS_INTARRAYREF_SLOW(size));
}

at::Tensor as_strided(const at::Tensor& self, c10::SymIntArrayRef size, c10::SymIntArrayRef stride,
                      std::optional<c10::SymInt> offset) {
  std::optional<int64_t> place;
  if (offset.has_value()) place = offset->expect_int();
  return at::native::as_strided_tensorimpl(self, C10_AS_INTARRAYREF_SLOW(size), C10_AS_INTARRAYREF_SLOW(stride), place);
}

at::Tensor reshape_alias(const at::Tensor& self, c10::SymIntArrayRef size, c10::SymIntArrayRef stride) {
  return at::native::_reshape_alias(self, C10_AS_INTARRAYREF_SLOW(size), C10_AS_INTARRAYREF_SLOW(stride));
}

const at::Tensor& resize(const at::Tensor& self, c10::SymIntArrayRef size, std::optional<at::MemoryFormat> format) {
  const c10::DeviceGuard guard(self.device());
  return at::native::resize_(self, C10_AS_INTARRAYREF_SLOW(size), format);
}

at::Tensor& set_part(at::Tensor& self, at::Storage source, c10::SymInt offset, c10::SymIntArrayRef size,
                     c10::SymIntArrayRef stride) {
  return at::native::set_storage_cpu_(self, std::move(source), offset.expect_int(), C10_AS_INTARRAYREF_SLOW(size),
                                      C10_AS_INTARRAYREF_SLOW(stride));
}

#if defined(STANDIN_FOR_CUDA)
// Two operations in which torch would call kernels that it has where it is built for these devices.
at::Tensor& copy_into(at::Tensor& self, const at::Tensor& from, bool) {
  on_cpu(self).copy_(on_cpu(from));
  return self;
}

at::Tensor attend(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const std::optional<at::Tensor>& mask,
                  double dropout, bool causal, std::optional<double> scale, bool grouped) {
  return std::get<0>(at::_scaled_dot_product_attention_math(q, k, v, mask, dropout, causal, {}, scale, grouped));
}
#endif

void fall_back(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  auto place = c10::Device(kDevice, current);
  for (const auto& value : *stack) {
    if (value.isTensor() && value.toTensor().defined() && value.toTensor().device().type() == kDevice) {
      place = value.toTensor().device();
      break;
    }
  }
  const c10::DeviceGuard guard(place);
  operations[place.index()]++;
  at::native::cpu_fallback(op, stack);
}

FILL(STANDIN_SLOT, m) {
  m.impl("empty.memory_format", &empty);
  m.impl("empty_strided", &empty_strided);
  m.impl("_copy_from", &copy_from);
#if defined(STANDIN_FOR_CUDA)
  m.impl("copy_", &copy_into);
  m.impl("scaled_dot_product_attention", &attend);
#endif
  m.impl("_copy_from_and_resize", &copy_from_and_resize);
  m.impl("view", &view);
  m.impl("as_strided", &as_strided);
  m.impl("_reshape_alias", &reshape_alias);
  m.impl("unfold", &at::native::unfold);
  m.impl("resize_", &resize);
  m.impl("set_.source_Storage_storage_offset", &set_part);
}

#if defined(STANDIN_FOR_CUDA)
FILL(AutogradCUDA, m) { m.impl("scaled_dot_product_attention", &attend); }
#endif

#ifdef STANDIN_AUTOCAST
// Autocast: products in half precision, sums and norms in fp32, as torch lists them for every device.
FILL_REST(STANDIN_AUTOCAST, m) { m.fallback(torch::CppFunction::makeFallthrough()); }

FILL(STANDIN_AUTOCAST, m) {
#define LOWER(...) KERNEL(kDevice, __VA_ARGS__, lower_precision_fp)
#define WHOLE(...) KERNEL(kDevice, __VA_ARGS__, fp32)
  AT_FORALL_LOWER_PRECISION_FP(LOWER)
  AT_FORALL_FP32(WHOLE)
}
#endif

FILL_REST(STANDIN_SLOT, m) { m.fallback(torch::CppFunction::makeFromBoxedFunction<&fall_back>()); }

#if defined(STANDIN_FOR_CUDA)
// DistributedDataParallel measures its steps on CUDA by a clock of the device's own.
struct Clock final : c10d::Timer {
  explicit Clock(c10::Device) {}
  std::optional<int64_t> measureDifference(Event start, Event end) override {
    const auto from = getTimestamp(start), to = getTimestamp(end);
    return from && to ? std::optional<int64_t>(*to - *from) : std::nullopt;
  }
};

// torch asks for CUDA's hooks while it is imported, before this is loaded, and keeps what it got: an object without
// members that says no to everything. Give it the methods of ours.
void answer_for_cuda() {
  static Hooks own;
  auto& kept = const_cast<at::CUDAHooksInterface&>(at::detail::getCUDAHooks());
  std::memcpy(static_cast<void*>(&kept), static_cast<void*>(&own), sizeof(void*));
}
#endif

}  // namespace

#if defined(STANDIN_FOR_CUDA)
namespace c10d {
C10_REGISTER_TYPED_CLASS(TimerRegistry, c10::kCUDA, Clock);
}
#endif

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
#if defined(STANDIN_FOR_CUDA)
  answer_for_cuda();
#else
  static Hooks hooks;
  at::RegisterPrivateUse1HooksInterface(&hooks);
#endif
  m.def("device_count", [] { return int(device_count()); });
  m.def("current_device", [] { return int(current); });
  m.def("set_device", [](int index) { Guard().setDevice(c10::Device(kDevice, static_cast<c10::DeviceIndex>(index))); });
  m.def("operations", [](int index) { return operations[index].load(); });
  m.def("max_memory_allocated", [](int index) { return highest[index].load(); });
  m.def("memory_allocated", [](int index) { return held[index].load(); });
  m.def("on_cpu", &on_cpu);
}
