import torch,time,contextlib,sys
sys.path.insert(0,"src")
from flashgatr import GATr
from flashgatr.config import preset
from flashgatr.kernels import paths
from flashgatr.experiments import registry
from flashgatr.experiments.nbody import models as _m
class ts:
    class _Random:
        def __init__(self,name,device):
            self.model=registry.build("nbody",name,{}).to(device); self.samples=64
            self._batch=tuple(torch.randn(s,device=device) for s in ((64,4),(64,4,3),(64,4,3),(64,4,3)))
        def batch(self,i): return self._batch
        def loss(self,model,batch):
            *i,t=batch; p,r=model(*i); return (p-t).square().mean()+0.01*r,{}
from flashgatr.experiments.config import TrainConfig
from flashgatr.experiments.engine.stepper import Stepper, make_optimizer
from flashgatr.experiments.engine.distributed import World
dev=torch.device("cuda")
def bench(f,n=10,warm=3):
    for _ in range(warm): f()
    torch.cuda.synchronize(); r=[]
    for _ in range(n):
        a=torch.cuda.Event(enable_timing=True); b=torch.cuda.Event(enable_timing=True)
        a.record(); f(); b.record(); torch.cuda.synchronize(); r.append(a.elapsed_time(b))
    r.sort(); return r[len(r)//2]
t0=time.time()
def check(autocast,**o):
    torch.manual_seed(0)
    net=GATr(**{**dict(in_mv_channels=2,in_s_channels=1,out_mv_channels=1,out_s_channels=2,hidden_mv_channels=4,hidden_s_channels=6,num_blocks=2,num_heads=2),**o}).cuda()
    mv=torch.randn(3,o.pop("n",5) if "n" in o else 5,2,16,device="cuda"); s=torch.randn(*mv.shape[:2],1,device="cuda")
    res=[]
    for mode in ("double","plain","fast"):
        m=net.double() if mode=="double" else net.float()
        a0=mv.double() if mode=="double" else mv; s0=s.double() if mode=="double" else s
        ctx=paths.plain_kernels() if mode!="fast" else contextlib.nullcontext()
        ac=torch.autocast("cuda",torch.bfloat16) if autocast and mode!="double" else contextlib.nullcontext()
        m.zero_grad()
        with ctx,ac:
            a,b=m(a0,s0)
        ((a*torch.linspace(0,1,16,device="cuda")).square().sum()+b.sin().sum()).backward()
        res.append([a.detach().double(),b.detach().double(),*[p.grad.double() for p in m.parameters()]])
        for p in m.parameters(): p.grad=None
    e=[sum((x-y).square().sum() for x,y in zip(r,res[0])).sqrt().item()/sum(y.square().sum() for y in res[0]).sqrt().item() for r in res[1:]]
    w=max(((x-y).abs().max()/((z-y).abs().max()+1e-7*y.abs().max()+1e-30)).item() for x,y,z in zip(res[2],res[0],res[1]))
    print("check",autocast,o,"plain %.2e fast %.2e worst ratio %.2f"%(*e,w),flush=True)
def nbody(prec,graph):
    torch.set_float32_matmul_precision(prec)
    t0=time.time()
    task=ts._Random("gatr",dev); c=TrainConfig(cuda_graph=graph); opt=make_optimizer(task.model,c,dev)
    st=Stepper(task,task.model,opt,c,World(0,1,dev),print); b=task.batch(torch.arange(64))
    st.step(b); torch.cuda.synchronize(); first=time.time()-t0
    t=bench(lambda: st.step(b),20,5)
    print("nbody",prec,"graph",graph,"%.3f ms, first %.1f s"%(t,first),flush=True)
    return st,b
st,b=nbody("high",True)
with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as prof: st.step(b); torch.cuda.synchronize()
rows=sorted(((e.self_device_time_total,e.count,e.key) for e in prof.key_averages()),reverse=True)
print("total us",sum(r[0] for r in rows),"kernels",sum(r[1] for r in rows))
for r in rows[:48]: print("%9.1f %5d %7.2f  %s"%(r[0],r[1],r[0]/r[1],r[2][:90]))
from flashgatr.kernels import gpu
few=gpu.FEW_ROWS; gpu.FEW_ROWS=0; print("cublas only:"); nbody("high",True); gpu.FEW_ROWS=few
nbody("highest",True); nbody("high",False)
# gradients in the graph equal eager's
def grads(graph):
    torch.manual_seed(0); torch.set_float32_matmul_precision("highest")
    task=ts._Random("gatr",dev); c=TrainConfig(cuda_graph=graph); opt=make_optimizer(task.model,c,dev)
    torch.manual_seed(1)
    task._batch=tuple(torch.randn(s,device=dev) for s in ((64,4),(64,4,3),(64,4,3),(64,4,3)))
    st=Stepper(task,task.model,opt,c,World(0,1,dev),print); b=task._batch
    ls=[]
    for _ in range(30): l,n,_=st.step(b); ls.append((l.item(),n.item()))
    return ls,[p.detach().clone() for p in task.model.parameters()]
a1,p1=grads(True); a2,p2=grads(False)
print("graph vs eager loss",a1[-1],a2[-1],"max param diff",max((x-y).abs().max().item() for x,y in zip(p1,p2)))
def artery(w,N=7000,B=8,prof=False):
    torch.set_float32_matmul_precision("high")
    net=GATr(preset("arteries",attention_width=w,in_mv_channels=2,in_s_channels=1)).cuda()
    mv=torch.randn(B,N,2,16,device="cuda"); s=torch.randn(B,N,1,device="cuda")
    def step():
        net.zero_grad()
        with torch.autocast("cuda",torch.bfloat16): a,_=net(mv,s)
        a.square().mean().backward()
    t0=time.time(); step(); torch.cuda.synchronize(); first=time.time()-t0
    torch.cuda.reset_peak_memory_stats(); base=torch.cuda.memory_allocated()
    t=bench(step,6,2)
    peak=torch.cuda.max_memory_allocated()/2**30
    s1=torch.cuda.Stream(); s1.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(s1):
        for _ in range(2): step()
    torch.cuda.current_stream().wait_stream(s1); net.zero_grad(set_to_none=True)
    gr=torch.cuda.CUDAGraph()
    with torch.cuda.graph(gr): step()
    tg=bench(gr.replay,6,2)
    print("artery graph %.2f ms, eager peak %.3f"%(tg,peak))
    if prof:
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as p: gr.replay(); torch.cuda.synchronize()
        rows=sorted(((e.self_device_time_total,e.count,e.key) for e in p.key_averages()),reverse=True)
        print("total us",sum(r[0] for r in rows),"kernels",sum(r[1] for r in rows))
        for r in rows[:36]: print("%9.1f %5d %7.2f  %s"%(r[0],r[1],r[0]/r[1],r[2][:90]))
    del gr
    print("artery w",w,"%.2f ms, first %.1f s, peak %.3f GiB"%(t,first,torch.cuda.max_memory_allocated()/2**30),flush=True)
artery(1,prof=True); artery(2)
