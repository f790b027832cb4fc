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
def tiles(big,small):
    def f(rows,cols):
        bm,bn,bk,st,w=(small if cols<1024 else big)
        return dict(BM=min(bm,16) if rows<=16 else bm,BN=bn,BK=bk,num_stages=st,num_warps=w)
    return f
for big,small in [((64,64,32,4,4),(32,32,128,3,4)),((64,64,64,3,4),(32,32,64,5,2)),((64,32,64,4,4),(32,32,128,3,2)),((64,128,32,4,4),(64,32,64,4,4)),((128,64,32,4,8),(32,64,64,4,4)),((64,64,64,3,4),(16,64,128,3,4))]:
    gpu._product_tile=tiles(big,small); print(big,small,end=" ")
    try: nbody("high",True)
    except Exception as e: print("ERR",str(e)[:100])
import importlib; importlib.reload(gpu)
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

net=task_net=registry.build("nbody","gatr",{}).to(dev).eval()
torch.set_float32_matmul_precision("high")
m,p,v=torch.rand(1,4,device=dev),torch.randn(1,4,3,device=dev),torch.randn(1,4,3,device=dev)
with torch.no_grad(), net.net.frozen():
    for _ in range(3): net(m,p,v)
    g=torch.cuda.CUDAGraph()
    with torch.cuda.graph(g): out=net(m,p,v)
    print("inference graph %.3f ms"%bench(g.replay,30,5), "eager %.3f"%bench(lambda: net(m,p,v),10,3))
